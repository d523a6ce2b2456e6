# Third-party packages. None of their types appears in a public header; all are linked PRIVATE.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)

# Header-only packages that some distributions lack: a CMake variable may point at them. Nothing found here is
# cached, so that a changed variable takes effect in an existing build folder.
find_path(BDCP_VALIJSON_DIR valijson/validator.hpp HINTS "${BDCP_VALIJSON_INCLUDE_DIR}" NO_CACHE)
find_path(BDCP_XXHASH_DIR xxhash.h HINTS "${BDCP_XXHASH_INCLUDE_DIR}" NO_CACHE)
if(NOT BDCP_VALIJSON_DIR)
  message(FATAL_ERROR "bdcp: valijson not found: install libvalijson-dev, or set BDCP_VALIJSON_INCLUDE_DIR to the "
                      "folder that holds valijson/validator.hpp")
endif()
if(NOT BDCP_XXHASH_DIR)
  message(FATAL_ERROR "bdcp: xxHash not found: install libxxhash-dev, or set BDCP_XXHASH_INCLUDE_DIR to the folder "
                      "that holds xxhash.h")
endif()
add_library(bdcp_valijson INTERFACE)
target_include_directories(bdcp_valijson SYSTEM INTERFACE "${BDCP_VALIJSON_DIR}")
add_library(bdcp_xxhash INTERFACE)
target_include_directories(bdcp_xxhash SYSTEM INTERFACE "${BDCP_XXHASH_DIR}")
target_compile_definitions(bdcp_xxhash INTERFACE XXH_INLINE_ALL)

if(BDCP_BUILD_TOOLS OR BDCP_BUILD_TESTS)
  find_package(CLI11 REQUIRED)
endif()
if(BDCP_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(BDCP_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

# CUDA: headers only (cuda.h, nvrtc.h; nccl.h where present). Libraries are opened at run time.
add_library(bdcp_cuda_headers INTERFACE)
if(NOT BDCP_CUDA_INCLUDE_DIRS STREQUAL "none")
  foreach(header cuda nvrtc)
    string(TOUPPER ${header} upper)
    find_path(BDCP_${upper}_H_DIR ${header}.h HINTS ${BDCP_CUDA_INCLUDE_DIRS} ENV CUDA_HOME ENV CUDA_PATH
      /usr/local/cuda PATH_SUFFIXES include NO_CACHE)
  endforeach()
endif()
if(BDCP_CUDA_H_DIR AND BDCP_NVRTC_H_DIR)
  target_include_directories(bdcp_cuda_headers SYSTEM INTERFACE "${BDCP_CUDA_H_DIR}" "${BDCP_NVRTC_H_DIR}")
  target_compile_definitions(bdcp_cuda_headers INTERFACE BDCP_HAVE_CUDA=1)
  message(STATUS "bdcp: CUDA headers in ${BDCP_CUDA_H_DIR}")
else()
  target_compile_definitions(bdcp_cuda_headers INTERFACE BDCP_HAVE_CUDA=0)
  message(STATUS "bdcp: no CUDA headers (cuda.h and nvrtc.h); only the host backend will work")
endif()
