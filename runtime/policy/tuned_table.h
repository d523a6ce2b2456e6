// Tuned tables: kernel configurations found by measurement. configs/schema/tuned.schema.json.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bdcp/types.h"

namespace bdcp::policy {

/// Facts of a call that rows may ask for.
struct TunedFacts {
  int head_dim = 0, head_dim_v = 0;
  int gqa = 1;  ///< query heads per K/V head
  DType dtype = DType::bf16;
  std::string layout_class;  ///< the tuner's bucket; empty: none known
};

struct TunedRow {
  std::string kernel, arch;
  /// What must hold; facts left out match anything.
  std::optional<int> head_dim, head_dim_v, gqa;
  std::optional<DType> dtype;
  std::optional<std::string> layout_class;
  std::map<std::string, int> config;              ///< Config constants by name
  std::map<std::string, std::string> provenance;  ///< device, driver, nvrtc, date and whatever else was noted
  std::string origin;                             ///< "<file> /rows/3"

  bool matches(const TunedFacts& facts) const;
  int specificity() const;  ///< number of facts asked for
};

/// Immutable value once filled.
class TunedTable {
 public:
  /// The tables that ship with the library, then `files` (kernels.tuned), in order. Throws
  /// Error(invalid_policy) with JSON pointer, value and what is allowed, or Error(io_error).
  static TunedTable load(std::span<const std::string> files);
  static TunedTable parse(std::string_view text, const std::string& origin);

  /// The matching row with the most facts; among equals the last one. nullopt: none, use the kernel's default.
  std::optional<TunedRow> find(std::string_view kernel, std::string_view arch, const TunedFacts& facts) const;
  const std::vector<TunedRow>& rows() const { return rows_; }

 private:
  void append(std::string_view text, const std::string& origin);
  std::vector<TunedRow> rows_;
};

}  // namespace bdcp::policy
