// Where the user's program is, for messages.
#pragma once

#include <functional>
#include <string>

namespace torchgraft {

// The line of the user's that called, "train.py:42"; empty where there is none, as in autograd's threads.
std::string user_place();
// What tells it: Python does, which knows whose lines are a library's.
void set_user_place(std::function<std::string()> place);

}  // namespace torchgraft
