// From a request's words to the layouts it measures.
#include <fmt/format.h>

#include "base/check.h"
#include "bench/cli.h"
#include "common/workloads.h"

namespace bdcp::bench {
namespace {

/// DocLayout says what is wrong with lengths and offsets; measuring must not begin before it has been asked.
Workload validated(Workload workload, const Request& request) {
  workload.layout(request.options.world);
  return workload;
}

Workload from_offsets(const Request& request) {
  Workload workload;
  workload.name = "cu_seqlens";
  workload.padding = request.padding;
  workload.cu_q = tools::parse_integers(request.cu_seqlens, "cu_seqlens");
  workload.cu_k = workload.cu_q;
  if (!request.cu_seqlens_k.empty()) {
    workload.cu_k = tools::parse_integers(request.cu_seqlens_k, "cu_seqlens_k");
    workload.square = false;
  }
  return workload;
}

}  // namespace

std::vector<Workload> workloads(const Request& request) {
  std::vector<Workload> list;
  const auto add = [&](Workload workload) { list.push_back(validated(std::move(workload), request)); };
  for (const std::string& pack : request.packs) {
    add(Workload::from_lengths(pack, tools::find_pack(pack), request.padding));
  }
  if (!request.lengths.empty()) {
    add(Workload::from_lengths("lengths", tools::parse_lengths(request.lengths), request.padding));
  }
  if (!request.cu_seqlens.empty()) add(from_offsets(request));
  for (int i = 0; i < request.random; ++i) {
    add(random_workload(request.options.seed, i, request.options.world, request.max_tokens));
  }
  return list;
}

}  // namespace bdcp::bench
