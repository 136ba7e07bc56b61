// The variables of this process's environment, which implementations of OpenCL take their settings from.
#pragma once

#include <optional>
#include <string>

namespace ocl {

std::optional<std::string> find_variable(const char* name);

// Sets a variable, or takes it away. Not by setenv(), which moves the list of variables, or what frees it, while other
// threads may be reading it: a new list takes the place of the old one, in which nothing changes and which stays where
// it is. Two threads that change variables at the same time may lose a change, as ever.
void set_variable(const char* name, const std::optional<std::string>& value);

}  // namespace ocl
