/* torchgraft/driver.h - the contract between torchgraft and a device.
 *
 * A driver is a table of functions over one kind of device. It knows nothing of tensors and includes nothing of
 * PyTorch: plain C, so that it may be written in C, C++, Rust, or (through torchgraft.Driver) Python.
 *
 * Rules for every function
 *  - The first argument is the `context` member of the table.
 *  - It may be called from any thread, at any time, without the Python GIL; the driver does its own locking.
 *  - It returns TG_OK or a status; after a failure `last_error` gives the calling thread's message. A failed call
 * changes nothing.
 *  - A function marked [optional] may be NULL; torchgraft then does without, or says that the device cannot.
 *
 * Order. Work submitted to one stream runs in the order of submission. A stream handle of NULL is never passed.
 *
 * Later failures. Work may fail after the call that submitted it has returned. The next stream_synchronize,
 * stream_query, device_synchronize or blocking copy of its stream then returns the status, once, with the name of the
 * kernel or the program in last_error. The stream takes work as before.
 */
#ifndef TORCHGRAFT_DRIVER_H
#define TORCHGRAFT_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TG_DRIVER_ABI 2u
/* What beginnings and sizes of the parts of reserved addresses are multiples of; see `reserve`. */
#define TG_MEMORY_PART (UINT64_C(2) << 20)

typedef enum tg_status {
  TG_OK = 0,
  TG_ERROR = 1,               /* anything not named below: becomes torch.AcceleratorError */
  TG_ERROR_OUT_OF_MEMORY = 2, /* torchgraft frees its cache, tries again, then raises torch.OutOfMemoryError */
  TG_ERROR_INVALID = 3,       /* an argument is out of range: becomes RuntimeError */
  TG_ERROR_UNSUPPORTED = 4,   /* the device cannot: becomes NotImplementedError */
  TG_ERROR_COMPILE = 5,       /* the kernel's source was refused; `log` says why */
  TG_NOT_READY = 6            /* not an error: the answer "no" of stream_query and event_query */
} tg_status;

typedef struct tg_stream_* tg_stream;
typedef struct tg_event_* tg_event;
typedef struct tg_module_* tg_module;
typedef struct tg_kernel_* tg_kernel;
typedef struct tg_graph_* tg_graph;
typedef struct tg_group_* tg_group;
typedef struct tg_program_* tg_program;

typedef enum tg_device_kind { TG_DEVICE_CPU = 1, TG_DEVICE_GPU = 2, TG_DEVICE_ACCELERATOR = 3 } tg_device_kind;

/* What a device can do; the bits of tg_device_properties.capabilities. */
enum {
  /* The host may read and write device addresses whenever no submitted work uses them. It then does small copies and
   * fills of an idle stream by itself. */
  TG_CAP_UNIFIED_MEMORY = 1u << 0,
  TG_CAP_COMPILER = 1u << 1, /* module_compile and launch work */
  TG_CAP_FLOAT64 = 1u << 2,  /* kernels may compute in float64 */
  TG_CAP_FLOAT16 = 1u << 3,  /* kernels may compute in float16 (storing it is always possible) */
  TG_CAP_ATOMIC_INT64 = 1u << 4,
  TG_CAP_EVENT_TIMING = 1u << 5, /* event_elapsed works */
  /* Kernels cannot be given an address inside an allocation: for each pointer argument a launch passes the allocation
   * and then an unsigned 64-bit byte offset, and the kernel's signature has both. */
  TG_CAP_BASE_OFFSET_POINTERS = 1u << 6,
  TG_CAP_SUBGROUPS = 1u << 7,
  TG_CAP_BFLOAT16_TILES = 1u << 8,   /* kernels may use the kernel language's words for tiles of bfloat16 */
  TG_CAP_BFLOAT16_VECTORS = 1u << 9, /* kernels may use the kernel language's words for vectors of bfloat16 */
  TG_CAP_FRAGMENTS = 1u << 10,       /* kernels may use the kernel language's words for fragments of 16-bit floats */
  TG_CAP_OUTER_VECTORS = 1u << 11,   /* the compiler makes vectors of a loop around one that is written out */
  TG_CAP_PROGRAMS = 1u << 12,        /* program_create and program_run work */
  TG_CAP_CONSTANTS = 1u << 13,       /* graphs are better with the parameters of a model as constants in them */
  /* With a compiler and programs: kernels serve what both can, but products of matrices where `torchgraft tune` found
   * programs quicker. */
  TG_CAP_KERNELS_FIRST = 1u << 14
};

/* What a device is. It never changes: it is part of the key under which kernels are kept. Each device has a name, a
 * kind and memory; address_align is a power of two, and the counts are at least 1. */
typedef struct tg_device_properties {
  uint32_t struct_size; /* set by the caller */
  uint32_t kind;        /* tg_device_kind */
  uint64_t capabilities;
  uint64_t total_memory;   /* bytes */
  uint64_t max_allocation; /* bytes, of one allocation */
  uint64_t local_memory;   /* bytes of a work-group's local memory */
  uint32_t compute_units;
  uint32_t max_work_group_size;
  uint32_t simd_width;    /* of float32, 1 where it has no meaning */
  uint32_t address_align; /* bytes; every allocation starts at a multiple */
  uint32_t clock_mhz;
  uint32_t reserved;
  char name[256];
  char vendor[128];
  char driver_version[256]; /* everything that decides what the compiler makes of a source: part of the cache's key */
  char platform[128];
  char dialect[32];         /* the kernel language, e.g. "opencl-c"; empty without a compiler */
  char uuid[64];            /* printable; equal for the same physical device; empty where unknown */
  char program_formats[64]; /* languages of whole graphs that program_create reads, with blanks between; may be empty */
} tg_device_properties;

typedef enum tg_copy_kind {
  TG_COPY_HOST_TO_DEVICE = 1,
  TG_COPY_DEVICE_TO_HOST = 2,
  TG_COPY_DEVICE_TO_DEVICE = 3
} tg_copy_kind;

/* One argument of a launch: a device address, or `size` bytes of plain data (at most 16). */
typedef struct tg_arg {
  uint32_t is_pointer;
  uint32_t size;
  union {
    void* pointer; /* NULL is allowed: the kernel will not use it */
    uint64_t u64;
    int64_t i64;
    double f64;
    float f32;
    unsigned char bytes[16];
  } value;
} tg_arg;

typedef struct tg_launch {
  tg_kernel kernel;
  uint32_t dims; /* 1..3 */
  uint32_t arg_count;
  size_t groups[3]; /* number of work-groups in each dimension, never 0 */
  size_t local[3];  /* work-items of one group in each dimension */
  const tg_arg* args;
  uint64_t bytes; /* memory that the arguments span, a hint; 0 if unknown. A device on the host may run a small launch
                     at once, in the calling thread, if its stream has nothing to do. */
} tg_launch;

/* What the elements of tensors are. Reductions of collectives compute with those up to TG_ELEMENT_F64. */
typedef enum tg_element {
  TG_ELEMENT_U8 = 1,
  TG_ELEMENT_I8 = 2,
  TG_ELEMENT_I16 = 3,
  TG_ELEMENT_I32 = 4,
  TG_ELEMENT_I64 = 5,
  TG_ELEMENT_F16 = 6,
  TG_ELEMENT_BF16 = 7,
  TG_ELEMENT_F32 = 8,
  TG_ELEMENT_F64 = 9,
  TG_ELEMENT_BOOL = 10, /* a byte, 0 or 1 */
  TG_ELEMENT_C64 = 11,  /* two float32: real and imaginary part */
  TG_ELEMENT_C128 = 12
} tg_element;

/* Programs: what a device prepares from a description and shapes, without data, and then runs with addresses. A
 * description is an operator with its attributes (torchgraft's are in docs/operators.md), or a whole graph in a
 * language that the device's compiler reads.
 *
 * Records that begin with their size may grow at their ends: the elements of an array of them lie struct_size bytes
 * apart, as tg_tensor_at and tg_attribute_at find them. */

/* A tensor, without its memory. Sizes and strides hold `dims` numbers, during the call. */
typedef struct tg_tensor {
  uint32_t struct_size;
  uint32_t element; /* tg_element; 0: an optional tensor that is not given, of which nothing else is set */
  uint32_t dims;
  uint32_t flags; /* TG_TENSOR_... */
  const int64_t* sizes;
  const int64_t* strides; /* in elements */
} tg_tensor;

enum {
  /* A number that each run gives anew, without dimensions: a run has the address of a float64 or an int64 on the host,
   * which is read during the call, that of a graph's run during graph_create. */
  TG_TENSOR_NUMBER = 1u << 0
};

typedef enum tg_attribute_kind {
  TG_ATTRIBUTE_INTEGER = 1, /* also a truth: 0 or 1 */
  TG_ATTRIBUTE_NUMBER = 2,
  TG_ATTRIBUTE_TEXT = 3,
  TG_ATTRIBUTE_INTEGERS = 4
} tg_attribute_kind;

typedef struct tg_attribute {
  uint32_t struct_size;
  uint32_t kind; /* tg_attribute_kind */
  const char* name;
  int64_t integer;
  double number;
  const char* text;
  const int64_t* integers;
  uint32_t count; /* of integers */
  uint32_t reserved;
} tg_attribute;

typedef struct tg_program_source {
  uint32_t struct_size;
  uint32_t attribute_count;
  uint32_t input_count;
  uint32_t output_count;
  const char* format; /* "operator", or the language of `bytes`, as "onnx" */
  const char* name;   /* the operator's; in other formats the program's, for messages and profiles */
  const void* bytes;  /* NULL for an operator */
  uint64_t byte_count;
  const tg_attribute* attributes;
  const tg_tensor* inputs;
  const tg_tensor* outputs;
} tg_program_source;

static inline const tg_tensor* tg_tensor_at(const tg_tensor* tensors, uint32_t index) {
  return (const tg_tensor*)((const char*)tensors + (size_t)index * tensors->struct_size);
}
static inline const tg_attribute* tg_attribute_at(const tg_attribute* attributes, uint32_t index) {
  return (const tg_attribute*)((const char*)attributes + (size_t)index * attributes->struct_size);
}

/* What a driver would rather have for a tensor than what it is asked about. */
typedef enum tg_wish {
  TG_WISH_NONE = 0,
  TG_WISH_CONTIGUOUS = 1,   /* the last dimension closest together */
  TG_WISH_CHANNELS_LAST = 2 /* the second dimension closest together, then the last */
} tg_wish;

enum {
  TG_PROGRAM_ONE_AT_A_TIME = 1u << 0 /* program_run is not called for it by two threads at once */
};

typedef struct tg_program_info {
  uint32_t struct_size;   /* set by the caller */
  uint32_t flags;         /* TG_PROGRAM_... */
  uint64_t scratch_bytes; /* of device memory that each run is given, 0 for none */
} tg_program_info;

/* One run of a program. The record and what it points to are valid during the call. */
typedef struct tg_run {
  uint32_t struct_size;
  uint32_t address_count;
  tg_program program;
  void* const* addresses; /* of the inputs, then of the outputs; NULL for one that is not given or has no elements;
                             of a number on the host */
  void* scratch;          /* undefined content, aligned as allocations; NULL where the program wants none */
} tg_run;

typedef enum tg_command_kind {
  TG_COMMAND_LAUNCH = 1,
  TG_COMMAND_COPY = 2,
  TG_COMMAND_FILL = 3,
  TG_COMMAND_RUN = 4
} tg_command_kind;

/* One command of a graph: what launch, copy (which does not block), fill or program_run would be given. */
typedef struct tg_command {
  uint32_t kind;          /* tg_command_kind */
  uint32_t copy_kind;     /* copy: tg_copy_kind */
  tg_launch launch;       /* launch */
  void* destination;      /* copy, fill */
  const void* source;     /* copy; run: its const tg_run* */
  uint64_t bytes;         /* copy, fill */
  uint32_t pattern_bytes; /* fill */
  uint32_t reserved;
  unsigned char pattern[16]; /* fill */
} tg_command;

typedef enum tg_reduction { TG_SUM = 1, TG_PRODUCT = 2, TG_MINIMUM = 3, TG_MAXIMUM = 4 } tg_reduction;

typedef struct tg_driver {
  uint32_t abi_version; /* TG_DRIVER_ABI */
  uint32_t struct_size; /* sizeof(tg_driver) */
  const char* name;     /* of the driver, for messages: "opencl" */
  void* context;

  /* The calling thread's message for its last failed call; valid until its next call. Never NULL. */
  const char* (*last_error)(void* context);

  /* Devices. Opened by the first call of device_count, never at load. Zero devices is TG_OK; last_error may then say
   * why. */
  tg_status (*device_count)(void* context, int32_t* count);
  tg_status (*device_properties)(void* context, int32_t device, tg_device_properties* out);
  tg_status (*device_synchronize)(void* context, int32_t device); /* waits for all streams */
  /* The free part is at most the total, and that at most the device's total_memory. */
  tg_status (*memory_info)(void* context, int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);

  /* Memory. `bytes` is never 0. An address is an ordinary 64-bit number on which torchgraft does arithmetic; any
   * address inside an allocation is accepted by copies, fills and launches. An allocation overlaps no other and keeps
   * its content until deallocate, which gives its memory back and is called only when no submitted work uses it. */
  tg_status (*allocate)(void* context, int32_t device, uint64_t bytes, void** address);
  tg_status (*deallocate)(void* context, int32_t device, void* address);
  tg_status (*host_allocate)(void* context, int32_t device, uint64_t bytes,
                             void** address);                                 /* [optional] pinned host memory */
  tg_status (*host_deallocate)(void* context, int32_t device, void* address); /* [optional] */

  /* Copies. With `blocking` the call returns when the copy is done; otherwise a host side must stay valid (and, unless
   * pinned, is read or written) until the stream has run the copy. */
  tg_status (*copy)(void* context, int32_t device, tg_stream stream, void* destination, const void* source,
                    uint64_t bytes, tg_copy_kind kind, int32_t blocking);
  /* [optional] Between two devices of this driver, ordered on `stream` of the destination's device; the source is
   * ready. */
  tg_status (*copy_peer)(void* context, int32_t destination_device, void* destination, int32_t source_device,
                         const void* source, uint64_t bytes, tg_stream stream);
  /* Repeats a pattern of 1, 2, 4, 8 or 16 bytes; `bytes` is a multiple of it. */
  tg_status (*fill)(void* context, int32_t device, tg_stream stream, void* destination, const void* pattern,
                    uint32_t pattern_bytes, uint64_t bytes);

  /* Streams. Priorities: lower is more urgent, 0 the default; a hint. Destroying one leaves the others as they are. */
  tg_status (*stream_create)(void* context, int32_t device, int32_t priority, tg_stream* out);
  tg_status (*stream_destroy)(void* context, int32_t device, tg_stream stream);
  tg_status (*stream_synchronize)(void* context, int32_t device, tg_stream stream);
  tg_status (*stream_query)(void* context, int32_t device, tg_stream stream); /* TG_OK: idle; TG_NOT_READY: busy */

  /* Events. An event has passed when the work submitted before its last recording is done, or it was never recorded. */
  tg_status (*event_create)(void* context, int32_t device, int32_t timing, tg_event* out);
  tg_status (*event_destroy)(void* context, int32_t device, tg_event event);
  tg_status (*event_record)(void* context, int32_t device, tg_event event, tg_stream stream);
  tg_status (*event_wait)(void* context, int32_t device, tg_event event,
                          tg_stream stream); /* the stream waits, not the host */
  tg_status (*event_query)(void* context, int32_t device, tg_event event);
  tg_status (*event_synchronize)(void* context, int32_t device, tg_event event);
  /* Milliseconds from one recorded timing event to another. [optional] */
  tg_status (*event_elapsed)(void* context, int32_t device, tg_event start, tg_event end, double* milliseconds);

  /* Kernels [optional, all or none: TG_CAP_COMPILER]. `log` receives a message owned by the driver, valid until the
   * thread's next call, also on success (warnings); it may be set to NULL. module_load refuses what is no binary of the
   * device. A kernel outlives the module that it was made of. */
  tg_status (*module_compile)(void* context, int32_t device, const char* source, uint64_t source_bytes,
                              const char* options, tg_module* out, const char** log);
  tg_status (*module_load)(void* context, int32_t device, const void* binary, uint64_t bytes, tg_module* out,
                           const char** log);
  /* The device's binary: first call with buffer NULL sets *bytes. TG_ERROR_UNSUPPORTED where there is none. */
  tg_status (*module_binary)(void* context, tg_module module, void* buffer, uint64_t* bytes);
  tg_status (*module_destroy)(void* context, tg_module module);
  tg_status (*kernel_create)(void* context, tg_module module, const char* name, tg_kernel* out);
  tg_status (*kernel_destroy)(void* context, tg_kernel kernel);
  tg_status (*launch)(void* context, int32_t device, tg_stream stream, const tg_launch* launch);

  /* The members from here on came later. A driver built with an older header has a smaller struct_size; torchgraft then
   * takes them for NULL. */

  /* Times of single commands, for the profiler [optional, all or none]. Without them it records a timing event before
   * and after each command, and without TG_CAP_EVENT_TIMING it waits for each command and measures on the host.
   *
   * event_time_next: the next launch, copy, copy_peer, fill or program_run that the calling thread gives to the device
   * is timed by `event`, made with timing. The event is then as if recorded after that command. It holds for one call,
   * whatever comes of it. */
  tg_status (*event_time_next)(void* context, int32_t device, tg_event event);
  /* When the device began and ended the command that a reached event timed, in nanoseconds of the device's clock. Both
   * are 0 where the host did the work within the call. */
  tg_status (*event_times)(void* context, int32_t device, tg_event event, uint64_t* begin, uint64_t* end);
  /* What that clock shows at some moment within this call: by it the device's times are brought to the host's. */
  tg_status (*device_time)(void* context, int32_t device, uint64_t* nanoseconds);

  /* event_synchronize for at most so long: TG_OK if the event has passed, TG_NOT_READY if not [optional]. With it
   * Ctrl-C ends a wait of the main thread, which torchgraft then makes in pieces; without it, once the wait is over. */
  tg_status (*event_synchronize_for)(void* context, int32_t device, tg_event event, uint64_t nanoseconds);

  /* Graphs: commands that are given to a stream again and again, all at once [optional, all or none]. Without them
   * torchgraft gives the stream one command after the other. The driver copies what it wants to keep of `commands`;
   * kernels and memory outlive the graph. Calls with the same graph come one at a time. */
  tg_status (*graph_create)(void* context, int32_t device, const tg_command* commands, uint32_t count, tg_graph* out);
  tg_status (*graph_destroy)(void* context, int32_t device, tg_graph graph);
  /* Gives a launch another value for an argument, from the next graph_launch on; earlier ones keep theirs, also those
   * that have still to run. An address stays an address, a number keeps its size. A run's arguments are its addresses,
   * of numbers their values, and behind them its scratch. */
  tg_status (*graph_set_argument)(void* context, int32_t device, tg_graph graph, uint32_t command, uint32_t argument,
                                  const tg_arg* value);
  /* As if the commands were given to the stream in their order. After a failure the first of them may have been. */
  tg_status (*graph_launch)(void* context, int32_t device, tg_stream stream, tg_graph graph);

  /* Collectives over a network of the device's own [optional, all or none]. Without them torchgraft goes through the
   * host. A group is of one device in each of `size` processes, which make the same calls in the same order. A call
   * is ordered on the stream and does not wait for the others. Memory is the device's. Messages between two ranks go
   * through the host.
   *
   * group_id: what one process makes and all are given, at most 256 bytes.
   * group_create: may block until all have called it.
   * group_destroy: comes when the group's calls are done, or, after an abort, while some may never be; a call that
   * waits for the other processes has to end then. */
  tg_status (*group_id)(void* context, int32_t device, void* id, uint64_t* bytes);
  tg_status (*group_create)(void* context, int32_t device, const void* id, uint64_t bytes, int32_t rank, int32_t size,
                            tg_group* out);
  tg_status (*group_destroy)(void* context, int32_t device, tg_group group);
  /* `count` elements of each rank are reduced, for all of them. The two addresses may be the same.
   * TG_ERROR_UNSUPPORTED, of all ranks alike, sends the call through the host. */
  tg_status (*all_reduce)(void* context, int32_t device, tg_group group, tg_stream stream, const void* source,
                          void* destination, uint64_t count, int32_t element, int32_t reduction);
  /* The same, and rank r gets the r-th `count` elements of the result; a source has `size` times as many. */
  tg_status (*reduce_scatter)(void* context, int32_t device, tg_group group, tg_stream stream, const void* source,
                              void* destination, uint64_t count, int32_t element, int32_t reduction);
  /* All get the `bytes` of each rank, one after the other. */
  tg_status (*all_gather)(void* context, int32_t device, tg_group group, tg_stream stream, const void* source,
                          void* destination, uint64_t bytes);
  tg_status (*broadcast)(void* context, int32_t device, tg_group group, tg_stream stream, void* address, uint64_t bytes,
                         int32_t root);

  /* Memory that grows in place [optional, all or none]. Addresses are reserved, and parts of them get memory and lose
   * it; parts that adjoin are one allocation to copies, fills and launches. Without these functions, or where `reserve`
   * fails, torchgraft allocates segments, of which some memory stays unused because pieces of two do not join.
   * Beginnings and sizes, of ranges and of parts, are multiples of TG_MEMORY_PART.
   *
   * reserve: addresses without memory; deallocate gives them back, with what memory they have.
   * commit: all of a part gets memory, of which none had any.
   * decommit: all of a part loses its memory, of which all had some; called only when no submitted work uses it. */
  tg_status (*reserve)(void* context, int32_t device, uint64_t bytes, void** address);
  tg_status (*commit)(void* context, int32_t device, void* address, uint64_t bytes);
  tg_status (*decommit)(void* context, int32_t device, void* address, uint64_t bytes);

  /* Programs [optional, all or none: TG_CAP_PROGRAMS].
   *
   * program_supports: whether the device can, answered quickly, without preparing anything. TG_ERROR_UNSUPPORTED, with
   * the reason in last_error, sends the op elsewhere. `wishes` has a tg_wish for each input, then for each output, all
   * TG_WISH_NONE: where the driver sets one, torchgraft copies the tensor accordingly and asks again. Of a language of
   * program_formats it is first asked for single nodes of a graph: without bytes, and the name is that of an op of
   * PyTorch's ("aten.add.Tensor").
   * program_create: prepares it, for tensors as they are. TG_ERROR_UNSUPPORTED as above; TG_ERROR_COMPILE means that it
   * should have worked, and `log`, as of module_compile, says why not.
   * program_run: submits it, ordered as a launch. Inputs are not written. Outputs may be inputs where the operator's
   * page says so.
   * program_destroy: no run is submitted any more; those that were may still be going on. */
  tg_status (*program_supports)(void* context, int32_t device, const tg_program_source* source, uint32_t* wishes);
  tg_status (*program_create)(void* context, int32_t device, const tg_program_source* source, tg_program* out,
                              tg_program_info* info, const char** log);
  tg_status (*program_destroy)(void* context, tg_program program);
  tg_status (*program_run)(void* context, int32_t device, tg_stream stream, const tg_run* run);

  /* Programs on disk [optional, both or none]: kept under driver_version, platform and what they are made of.
   *
   * program_binary: as module_binary. TG_ERROR_UNSUPPORTED where this program has none.
   * program_load: as program_create, of a binary in place of the source's bytes, which are not given. It refuses what
   * is no binary of the device's, and the program is created then. */
  tg_status (*program_binary)(void* context, tg_program program, void* buffer, uint64_t* bytes);
  tg_status (*program_load)(void* context, int32_t device, const tg_program_source* source, const void* binary,
                            uint64_t bytes, tg_program* out, tg_program_info* info, const char** log);
} tg_driver;

/* struct_size of the first version. */
#define TG_DRIVER_MIN_SIZE offsetof(tg_driver, event_time_next)

/* A shared library offers its driver by one exported function (name by convention) that returns a table which lives as
 * long as the library. */
typedef const tg_driver* (*tg_driver_entry)(void);
#define TG_DRIVER_ENTRY_NAME "torchgraft_driver"

#ifdef __cplusplus
}
#endif
#endif
