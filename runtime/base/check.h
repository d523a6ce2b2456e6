// Throwing helpers: the message names field, value and what is allowed.
#pragma once
#include <string>

#include "bdcp/error.h"

namespace bdcp {

inline void require(bool ok, ErrorCode code, const char* message,
                    SourceLocation where = SourceLocation::current()) {
  if (!ok) throw Error(code, message, ErrorScope::call, where);
}
/// For messages worth formatting: `make` runs only on failure.
template <class MakeMessage>
requires requires(MakeMessage make) { std::string(make()); }
void require(bool ok, ErrorCode code, MakeMessage&& make, SourceLocation where = SourceLocation::current()) {
  if (!ok) throw Error(code, std::string(make()), ErrorScope::call, where);
}

}  // namespace bdcp
