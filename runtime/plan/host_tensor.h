// What batch.cc needs of one host tensor beyond the public shard_rows.
#pragma once

#include <string>

#include "bdcp/batch.h"

namespace bdcp::plan {

/// Shape and data agree; throws Error(invalid_argument) naming `name`.
void validate(const HostTensor& tensor, const std::string& name);
/// shard_rows(tensor, dimension, fill, ...) will not throw for this tensor; otherwise as validate.
void validate_shard(const HostTensor& tensor, const std::string& name, int dimension, double fill);
/// Rows [begin, end) of dimension 0.
HostTensor slice_rows(const HostTensor& tensor, std::int64_t begin, std::int64_t end);

}  // namespace bdcp::plan
