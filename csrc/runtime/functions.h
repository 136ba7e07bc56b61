// What torchgraft/functions.h offers to functions of authors.
#pragma once

#include <torchgraft/functions.h>

namespace torchgraft {

const torchgraft_functions* author_functions();

}  // namespace torchgraft
