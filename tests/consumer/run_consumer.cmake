# Configures, builds and runs project/ in a fresh folder WORK. WAY: find_package or add_subdirectory.
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message(STATUS "${what}\n${output}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status})")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(arguments "-DWAY=${WAY}" "-DBDCP_SOURCE=${BDCP_SOURCE}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}"
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1)
if(LAUNCHER)
  list(APPEND arguments "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
endif()
if(WAY STREQUAL "find_package")
  step("install" "${CMAKE_COMMAND}" --install "${BDCP_BUILD}" --config "${CONFIG}" --prefix "${WORK}/prefix")
  # Moved, so that a path of the build tree in the package would show.
  file(RENAME "${WORK}/prefix" "${WORK}/moved")
  list(APPEND arguments "-DCMAKE_PREFIX_PATH=${WORK}/moved")
else()
  list(APPEND arguments "-DBDCP_VALIJSON_INCLUDE_DIR=${VALIJSON}" "-DBDCP_XXHASH_INCLUDE_DIR=${XXHASH}"
    "-DBDCP_CUDA_INCLUDE_DIRS=${CUDA}")
endif()
step("configure" "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${WORK}/build" -G "${GENERATOR}" ${arguments})
step("build" "${CMAKE_COMMAND}" --build "${WORK}/build" -j 2)
step("run" "${WORK}/build/consumer")
# The example's documents attend over values of one: its first output is exactly that.
if(NOT output MATCHES "host: out\\[0\\] = 1\n")
  message(FATAL_ERROR "unexpected output: ${output}")
endif()
