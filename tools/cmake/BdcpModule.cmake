# One library per folder. A target sees the headers of its own folder and of the targets it links, and no others:
# each gets an include root that holds nothing but a link to its folder, so a wrong arrow does not build.

function(bdcp_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 reports these inside its own std::string and std::optional when it inlines them.
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-maybe-uninitialized)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # g++ 13 takes any function from a temporary to a reference for a leak.
    target_compile_options(${target} PRIVATE -Wno-dangling-reference)
  endif()
  if(BDCP_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# bdcp_module(NAME SOURCES a.cc ... [PUBLIC targets...] [PRIVATE targets...])
function(bdcp_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(root "${PROJECT_BINARY_DIR}/include_roots/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${root}/${name}" SYMBOLIC)
  add_library(bdcp_${name} STATIC ${ARG_SOURCES})
  target_compile_features(bdcp_${name} PUBLIC cxx_std_20)
  set_target_properties(bdcp_${name} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_include_directories(bdcp_${name} PUBLIC "$<BUILD_INTERFACE:${root}>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include>" "$<INSTALL_INTERFACE:include>")
  target_link_libraries(bdcp_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  bdcp_warnings(bdcp_${name})
endfunction()

# bdcp_program(NAME SOURCES ... LINK ...): an executable in bin/.
function(bdcp_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  bdcp_warnings(${name})
endfunction()

# bdcp_test(NAME LABEL SOURCES ... LINK ...): one GoogleTest program, one ctest entry.
# LABEL is host, nvrtc, gpu or multi_gpu; tests without their hardware skip themselves and say why (GTEST_SKIP).
function(bdcp_test name label)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE BDCP_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    BDCP_SOURCE_DIR="${PROJECT_SOURCE_DIR}" BDCP_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest GTest::gtest_main)
  bdcp_warnings(${name})
  # One ctest entry per program keeps the run short; GoogleTest's own output names the case that failed.
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${ARG_TIMEOUT}
    SKIP_REGULAR_EXPRESSION "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\][^\n]*\n?)+$")
endfunction()
