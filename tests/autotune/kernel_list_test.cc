#include "autotune/kernel_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attention/options.h"
#include "autotune/exit_code.h"
#include "autotune/warm_report.h"
#include "bdcp/error.h"
#include "policy/model_file.h"

namespace bdcp::autotune {
namespace {

CallShape shape(int dim, DType dtype = DType::bf16) {
  CallShape shape;
  shape.heads_q = 8;
  shape.heads_kv = 2;
  shape.head_dim = dim;
  shape.dtype = dtype;
  return shape;
}

TEST(KernelList, HoldsAttentionAndExchangeKernelsOnce) {
  const auto list = kernel_list({shape(64), shape(128), shape(64)}, "sm_80");
  ASSERT_FALSE(list.empty());
  for (auto it = list.begin(); it != list.end(); ++it) {
    EXPECT_EQ(it->arch, "sm_80");
    EXPECT_EQ(std::find(list.begin(), it, *it), it) << it->kernel << " twice";
  }
  auto count = [&](const std::string& part) {
    return std::count_if(list.begin(), list.end(), [&](const jit::KernelSpec& spec) {
      return spec.kernel.find(part) != std::string::npos;
    });
  };
  EXPECT_GE(count("forward"), 2);  // one for each head dim
  EXPECT_GE(count("reduce"), 2);   // partials in f32 and in the input's type
  EXPECT_EQ(kernel_list({shape(64), shape(128)}, "sm_80"), list);
}

// What a step asks for under a policy is what its group's options say, and those may come from any group entry.
TEST(KernelList, CoversEveryOptionOfThePolicy) {
  Policy::Sources sources;
  sources.ignore_env = true;
  sources.json = R"({"schema_version": 1, "groups": [
    {"match": {"name": "a"}, "set": {"attention": {"deterministic": true}}},
    {"match": {"min_world": 2}, "set": {"attention": {"batch_invariant": true}, "exchange": {"grad_payload": "input"}}}]})";
  const Policy policy = Policy::load(sources);
  const auto list = kernel_list({shape(64)}, "sm_80", policy);
  for (const auto& backend : attention::make_backends())
    for (const bool deterministic : {false, true})
      for (const bool batch_invariant : {false, true})
        for (const bool payload_f32 : {false, true})
          for (const jit::KernelSpec& spec : backend->required_kernels(
                   shape(64), "sm_80", true, {deterministic, batch_invariant, payload_f32}))
            EXPECT_NE(std::find(list.begin(), list.end(), spec), list.end()) << spec.kernel;
  EXPECT_EQ(attention::options_under(policy).size(), 8u);
  EXPECT_EQ(attention::options_under(Policy()).size(), 1u);
}

TEST(KernelList, EveryShippedModelHasKernels) {
  const auto models = policy::shipped_models();
  EXPECT_THAT(models, ::testing::IsSupersetOf({"llama3-8b", "llama3-70b", "gemma-7b"}));
  for (const std::string& model : models)
    for (const char* arch : {"sm_80", "sm_90a"})
      EXPECT_FALSE(kernel_list(policy::load_model(model).shapes, arch).empty()) << model;
}

TEST(KernelList, ShapesNobodyTakesAreNamed) {
  try {
    kernel_list({shape(100000)}, "sm_80");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("100000"));
  }
}

TEST(WarmReport, JsonHasTheAgreedFields) {
  WarmReport report;
  report.compiled = 1;
  report.failed = 1;
  report.seconds = 1.5;
  report.cache = "/somewhere";
  report.entries.resize(2);
  report.entries[0].info = {"0123", "k", "sm_80", 12.5, 168, 4, 1024, true};
  report.entries[1].error = "log with a bad byte \xff";
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["kernels"], 2);
  EXPECT_EQ(json["compiled"], 1);
  EXPECT_EQ(json["hits"], 0);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["seconds"], 1.5);
  EXPECT_EQ(json["cache"], "/somewhere");
  const nlohmann::json first = {{"key", "0123"},    {"kernel", "k"},    {"arch", "sm_80"},    {"ms", 12.5},
                                {"registers", 168}, {"spill_bytes", 4}, {"smem_bytes", 1024}, {"hit", true}};
  EXPECT_EQ(json["entries"][0], first);
  EXPECT_TRUE(json["entries"][1].contains("error"));
  EXPECT_THAT(to_text(report), ::testing::HasSubstr("spills: k for sm_80: 4 bytes"));
}

TEST(WarmReport, ExitCodes) {
  WarmReport report;
  EXPECT_EQ(exit_code_of(report), 0);
  report.failed = 1;
  EXPECT_EQ(exit_code_of(report), 5);
  report.environment = "no NVRTC";
  EXPECT_EQ(exit_code_of(report), 4);
  EXPECT_EQ(exit_code_of(ErrorCode::invalid_policy), 3);
  EXPECT_EQ(exit_code_of(ErrorCode::io_error), 4);
  EXPECT_EQ(exit_code_of(ErrorCode::compile_failed), 5);
}

}  // namespace
}  // namespace bdcp::autotune
