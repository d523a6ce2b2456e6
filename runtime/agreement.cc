#include "agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bdcp/version.h"

namespace bdcp {
namespace {

// Length-prefixed strings: small, and every length is checked against what is left.
void put(std::string& out, std::string_view text) {
  const std::uint32_t size = static_cast<std::uint32_t>(text.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out.append(text);
}

class Reader {
 public:
  Reader(std::string_view bytes, int rank) : rest_(bytes), rank_(rank) {}
  std::string take() {
    std::uint32_t size = 0;
    if (rest_.size() < sizeof size) fail();
    std::memcpy(&size, rest_.data(), sizeof size);
    rest_.remove_prefix(sizeof size);
    if (size > rest_.size()) fail();
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  bool flag() {
    const std::string text = take();
    if (text != "0" && text != "1") fail();
    return text == "1";
  }
  void end() {
    if (!rest_.empty()) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(ErrorCode::divergence,
                fmt::format("rank {} sent a report that this version does not understand", rank_),
                ErrorScope::step)
        .with_origin(rank_);
  }
  std::string_view rest_;
  int rank_;
};

std::string render(const CallShape& s) {
  return fmt::format("heads {}:{} dim {}/{} {} scale {:.17g} dropout {:.17g} backward {}", s.heads_q,
                     s.heads_kv, s.head_dim, s.dim_v(), to_string(s.dtype), s.softmax_scale(), s.dropout_p,
                     s.backward);
}

}  // namespace

std::string encode(const RankReport& report) {
  std::string out;
  put(out, report.facts.host);
  for (const plan::Verdict& verdict : report.facts.backends) {
    put(out, verdict.ok ? "1" : "0");
    put(out, verdict.code);
    put(out, verdict.text);
  }
  put(out, report.transport);
  put(out, report.measured);
  put(out, report.pending_policy);
  put(out, report.error ? "1" : "0");
  if (report.error) {
    put(out, std::to_string(static_cast<int>(report.error->first)));
    put(out, report.error->second);
  }
  return out;
}

RankReport decode(const std::string& bytes, int rank) {
  Reader reader(bytes, rank);
  RankReport report;
  report.facts.host = reader.take();
  for (plan::Verdict& verdict : report.facts.backends) {
    verdict.ok = reader.flag();
    verdict.code = reader.take();
    verdict.text = reader.take();
  }
  report.transport = reader.take();
  report.measured = reader.take();
  report.pending_policy = reader.take();
  if (reader.flag()) {
    // An unknown number (a newer peer's code) still names the rank and its text.
    const int code = std::atoi(reader.take().c_str());
    const bool known = code >= 0 && code <= static_cast<int>(ErrorCode::internal);
    report.error = {known ? static_cast<ErrorCode>(code) : ErrorCode::peer_failed, reader.take()};
  }
  reader.end();
  return report;
}

std::vector<std::pair<std::string, std::string>> must_match_fields(
    const DocLayout& layout, std::span<const CallShape> shapes,
    const std::vector<std::pair<std::string, std::string>>& policy_fields, const std::string& templates_hash) {
  std::vector<std::pair<std::string, std::string>> fields;
  fields.emplace_back("library_version", BDCP_VERSION_STRING);
  fields.emplace_back("kernel_templates", templates_hash);
  fields.emplace_back("layout", fmt::format("{:016x} ({} documents, {} tokens)", layout.hash(),
                                            layout.documents(), layout.padded_tokens()));
  fields.emplace_back("shapes", std::to_string(shapes.size()));
  for (std::size_t i = 0; i < shapes.size(); ++i)
    fields.emplace_back(fmt::format("shapes[{}]", i), render(shapes[i]));
  for (const auto& [pointer, value] : policy_fields) fields.emplace_back("policy" + pointer, value);
  return fields;
}

void raise_reported_errors(std::span<const RankReport> reports) {
  int first = -1;
  ErrorCode code = ErrorCode::internal;
  std::vector<std::pair<std::string, std::string>> texts;  // what, and who says so: often all the same
  for (std::size_t r = 0; r < reports.size(); ++r) {
    if (!reports[r].error) continue;
    if (first < 0) {
      first = static_cast<int>(r);
      code = reports[r].error->first;
    }
    const std::string& what = reports[r].error->second;
    const auto known =
        std::find_if(texts.begin(), texts.end(), [&](const auto& each) { return each.first == what; });
    if (known == texts.end()) {
      texts.emplace_back(what, fmt::format("rank {}", r));
    } else {
      known->second += fmt::format(", rank {}", r);
    }
  }
  std::string text;
  for (const auto& [what, who] : texts) {
    if (!text.empty()) text += "; ";
    if (reports.size() > 1) text.append(who).append(": ");
    text += what;
  }
  // What ends one process does not end the others.
  if (reports.size() > 1 && (code == ErrorCode::device_lost || code == ErrorCode::forked))
    code = ErrorCode::peer_failed;
  if (first >= 0) throw Error(code, text, ErrorScope::step).with_origin(reports.size() > 1 ? first : -1);
}

void raise_setting_difference(std::span<const RankReport> reports) {
  const auto compare = [&](const char* what, std::string RankReport::*value) {
    for (std::size_t r = 1; r < reports.size(); ++r) {
      if (reports[r].*value == reports[0].*value) continue;
      throw Error(ErrorCode::divergence,
                  fmt::format("ranks disagree about {}: rank 0 has \"{}\", rank {} has \"{}\"", what,
                              reports[0].*value, r, reports[r].*value),
                  ErrorScope::step);
    }
  };
  compare("the transport", &RankReport::transport);
  compare("the measured row of exchange.measured", &RankReport::measured);
}

}  // namespace bdcp
