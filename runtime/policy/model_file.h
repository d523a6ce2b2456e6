// Model files: the attention shapes of a model, for warming a kernel cache. configs/schema/model.schema.json.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "bdcp/types.h"

namespace bdcp::policy {

struct ModelShapes {
  std::string name;
  std::vector<CallShape> shapes;  ///< one per attention type and element type, in file order
};

/// `name_or_path`: a model that ships with the library ("llama3-8b"), else the path of a model file. Throws
/// Error(invalid_policy) with JSON pointer, value and what is allowed; a name that is neither lists the shipped
/// ones.
ModelShapes load_model(const std::string& name_or_path);
/// From text; `origin` (a path, usually) begins every error message.
ModelShapes parse_model(std::string_view text, const std::string& origin);
/// Names of the models that ship with the library, sorted.
std::vector<std::string> shipped_models();

}  // namespace bdcp::policy
