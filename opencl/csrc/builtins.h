// Declarations of OpenCL C's builtin functions, for compilers that would read all of them for every program.
#pragma once

#include <string>

namespace ocl {

// Declares each builtin function that `source` names, in all its overloads, for OpenCL C 1.x. Functions that are not
// among ours are left out: a program that calls one does not compile with these declarations alone.
std::string declare_builtins(const std::string& source);

}  // namespace ocl
