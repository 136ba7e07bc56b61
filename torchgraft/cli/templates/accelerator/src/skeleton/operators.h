/* Programs: the members of the table, see torchgraft/driver.h. */
#ifndef DRIVER_OPERATORS_H
#define DRIVER_OPERATORS_H

#include "torchgraft/driver.h"

tg_status program_supports(void* context, int32_t device, const tg_program_source* source, uint32_t* wishes);
tg_status program_create(void* context, int32_t device, const tg_program_source* source, tg_program* out,
                         tg_program_info* info, const char** log);
tg_status program_destroy(void* context, tg_program program);
tg_status program_run(void* context, int32_t device, tg_stream stream, const tg_run* run);

#endif
