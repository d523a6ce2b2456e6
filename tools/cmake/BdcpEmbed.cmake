# bdcp_embed(TARGET NAMESPACE_SYMBOL FILES...): a static library with the text of FILES, reachable as
#   extern const bdcp::EmbeddedFile SYMBOL[]; extern const std::size_t SYMBOL_count;
# (declared by base/embedded.h). The texts are regenerated when a file changes.
function(bdcp_embed target symbol)
  cmake_parse_arguments(ARG "" "BASE" "FILES" ${ARGN})
  if(NOT ARG_BASE)
    set(ARG_BASE "${CMAKE_CURRENT_SOURCE_DIR}")
  endif()
  set(out "${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cc")
  add_custom_command(OUTPUT "${out}"
    COMMAND "${CMAKE_COMMAND}" "-DOUT=${out}" "-DSYMBOL=${symbol}" "-DBASE=${ARG_BASE}" "-DFILES=${ARG_FILES}"
            -P "${PROJECT_SOURCE_DIR}/tools/cmake/embed_files.cmake"
    DEPENDS ${ARG_FILES} "${PROJECT_SOURCE_DIR}/tools/cmake/embed_files.cmake" VERBATIM)
  add_library(${target} STATIC "${out}")
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE bdcp_base)
endfunction()
