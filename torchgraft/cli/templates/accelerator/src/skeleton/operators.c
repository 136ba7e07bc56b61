/* Operators: what the device computes by itself.
 *
 * YOUR LIBRARY HERE. A few operators in plain C show how they are asked for, refused, prepared and run; torchgraft's
 * docs/operators.md lists all. Replace `describe` by what your library prepares and `run_now` by what submits that to
 * a queue. Add what networks need next in the order in which `torchgraft doctor` names it. What is refused runs on the
 * CPU, and `torchgraft.fallback_report()` has your reasons.
 */
#include "operators.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MAX_DIMS = 8, MAX_TENSORS = 8 };
static const uint32_t ALL = ~0u; /* dimensions */

/* ---- Descriptions ---- */

typedef struct tensor {
  uint32_t element; /* tg_element; 0: not given */
  int is_number;
  int dims;
  int64_t sizes[MAX_DIMS], strides[MAX_DIMS];
} tensor;

typedef struct operand {
  tensor as;
  char* place; /* on the host */
} operand;

typedef struct program program;
typedef void (*body)(const program* p);

/* An operator, with all that it needs to run. */
struct program {
  body run;
  int input_count, count; /* of operands: inputs, then outputs */
  operand operands[MAX_TENSORS];
  double numbers[MAX_TENSORS]; /* of inputs that are numbers */
  double alpha, beta;          /* matmul */
  uint32_t dims;               /* a bit for each: softmax, reduce */
  int kind;                    /* pointwise, reduce */
  int fills_integer;           /* fill */
  int64_t integer;
  double number;
};

struct tg_program_ {
  program description;
};

static const operand* input(const program* p, int i) { return &p->operands[i]; }
static const operand* output(const program* p, int i) { return &p->operands[p->input_count + i]; }

/* ---- Elements ---- */

static int is_float(uint32_t element) { return element == TG_ELEMENT_F32 || element == TG_ELEMENT_F64; }

static size_t size_of(uint32_t element) {
  switch (element) {
    case TG_ELEMENT_F32:
    case TG_ELEMENT_I32:
      return 4;
    case TG_ELEMENT_F64:
    case TG_ELEMENT_I64:
      return 8;
    default:
      return 1; /* TG_ELEMENT_U8, TG_ELEMENT_BOOL */
  }
}

static int is_known(uint32_t element) {
  return is_float(element) || element == TG_ELEMENT_I32 || element == TG_ELEMENT_I64 || element == TG_ELEMENT_U8 ||
         element == TG_ELEMENT_BOOL;
}

/* How many elements the dimensions have whose bits are set. */
static int64_t count_of(const tensor* t, uint32_t dims) {
  int64_t count = 1;
  for (int d = 0; d < t->dims; ++d) {
    if (dims >> d & 1) count *= t->sizes[d];
  }
  return count;
}

/* Where the i-th element of these dimensions lies, the last dimension counted fastest. */
static int64_t offset_of(const tensor* t, int64_t i, uint32_t dims) {
  int64_t offset = 0;
  for (int d = t->dims - 1; d >= 0; --d) {
    if (!(dims >> d & 1)) continue;
    offset += i % t->sizes[d] * t->strides[d];
    i /= t->sizes[d];
  }
  return offset;
}

static double load(const operand* from, int64_t offset) {
  const char* place = from->place + offset * (int64_t)size_of(from->as.element);
  return from->as.element == TG_ELEMENT_F32 ? *(const float*)place : *(const double*)place;
}

static int64_t load_integer(const operand* from, int64_t offset) {
  const char* place = from->place + offset * (int64_t)size_of(from->as.element);
  switch (from->as.element) {
    case TG_ELEMENT_I32:
      return *(const int32_t*)place;
    case TG_ELEMENT_I64:
      return *(const int64_t*)place;
    default:
      return *(const uint8_t*)place;
  }
}

static void store_integer(const operand* to, int64_t offset, int64_t value) {
  char* place = to->place + offset * (int64_t)size_of(to->as.element);
  switch (to->as.element) {
    case TG_ELEMENT_F32:
      *(float*)place = (float)value;
      break;
    case TG_ELEMENT_F64:
      *(double*)place = (double)value;
      break;
    case TG_ELEMENT_I32:
      *(int32_t*)place = (int32_t)value;
      break;
    case TG_ELEMENT_I64:
      *(int64_t*)place = value;
      break;
    case TG_ELEMENT_BOOL:
      *(uint8_t*)place = value != 0;
      break;
    default:
      *(uint8_t*)place = (uint8_t)value;
  }
}

static void store_float(const operand* to, int64_t offset, double value) {
  char* place = to->place + offset * (int64_t)size_of(to->as.element);
  if (to->as.element == TG_ELEMENT_F32) {
    *(float*)place = (float)value;
  } else if (to->as.element == TG_ELEMENT_F64) {
    *(double*)place = value;
  } else if (to->as.element == TG_ELEMENT_BOOL) {
    *(uint8_t*)place = value != 0;
  } else { /* what no integer is becomes the smallest, as on most CPUs */
    store_integer(to, offset, value > -9.2e18 && value < 9.2e18 ? (int64_t)value : INT64_MIN);
  }
}

/* ---- copy, fill ---- */

static void run_copy(const program* p) {
  const operand *x = input(p, 0), *y = output(p, 0);
  for (int64_t i = 0, n = count_of(&x->as, ALL); i < n; ++i) {
    int64_t from = offset_of(&x->as, i, ALL), to = offset_of(&y->as, i, ALL);
    if (is_float(x->as.element)) {
      store_float(y, to, load(x, from));
    } else {
      store_integer(y, to, load_integer(x, from));
    }
  }
}

static void run_fill(const program* p) {
  const operand* y = output(p, 0);
  for (int64_t i = 0, n = count_of(&y->as, ALL); i < n; ++i) {
    int64_t to = offset_of(&y->as, i, ALL);
    if (p->fills_integer) {
      store_integer(y, to, p->integer);
    } else {
      store_float(y, to, p->number);
    }
  }
}

/* ---- pointwise ---- */

static double add(const double* v) { return v[0] + v[2] * v[1]; }
static double sub(const double* v) { return v[0] - v[2] * v[1]; }
static double mul(const double* v) { return v[0] * v[1]; }
static double divide(const double* v) { return v[0] / v[1]; }
static double negative(const double* v) { return -v[0]; }
static double exponential(const double* v) { return exp(v[0]); }
static double logarithm(const double* v) { return log(v[0]); }
static double root(const double* v) { return sqrt(v[0]); }
static double hyperbolic(const double* v) { return tanh(v[0]); }
static double relu(const double* v) { return v[0] > 0 || isnan(v[0]) ? v[0] : 0; }
static double relu_gradient(const double* v) { return v[1] <= v[2] ? 0 : v[0]; }
static double tanh_gradient(const double* v) { return v[0] * (1 - v[1] * v[1]); }
static double equal(const double* v) { return v[0] == v[1]; }
static double less(const double* v) { return v[0] < v[1]; }
static double greater(const double* v) { return v[0] > v[1]; }

/* PyTorch's names, of ops and of their arguments in the order in which they are given. */
static const struct {
  const char *kind, *names;
  double (*function)(const double* values);
} KINDS[] = {
    {"add", "self other alpha", add},
    {"sub", "self other alpha", sub},
    {"mul", "self other", mul},
    {"div", "self other", divide},
    {"neg", "self", negative},
    {"exp", "self", exponential},
    {"log", "self", logarithm},
    {"sqrt", "self", root},
    {"tanh", "self", hyperbolic},
    {"relu", "self", relu},
    {"threshold_backward", "grad_output self threshold", relu_gradient},
    {"tanh_backward", "grad_output output", tanh_gradient},
    {"eq", "self other", equal},
    {"lt", "self other", less},
    {"gt", "self other", greater},
};
enum { KIND_COUNT = sizeof(KINDS) / sizeof(KINDS[0]) };

static void run_pointwise(const program* p) {
  const operand* y = output(p, 0);
  double values[MAX_TENSORS];
  memcpy(values, p->numbers, sizeof(values));
  for (int64_t i = 0, n = count_of(&y->as, ALL); i < n; ++i) {
    for (int k = 0; k < p->input_count; ++k) {
      const operand* x = input(p, k);
      if (!x->as.is_number) values[k] = load(x, offset_of(&x->as, i, ALL));
    }
    store_float(y, offset_of(&y->as, i, ALL), KINDS[p->kind].function(values));
  }
}

/* ---- matmul ---- */

/* C = alpha A B + beta D; of two dimensions, or of three, of which the first counts products. */
static void run_matmul(const program* p) {
  const operand *a = input(p, 0), *b = input(p, 1), *d = input(p, 2), *c = output(p, 0);
  int row = a->as.dims - 2, column = row + 1;
  int64_t batches = row ? a->as.sizes[0] : 1, length = a->as.sizes[column];
  for (int64_t n = 0; n < batches; ++n) {
    for (int64_t i = 0; i < c->as.sizes[row]; ++i) {
      for (int64_t j = 0; j < c->as.sizes[column]; ++j) {
        int64_t of_a = i * a->as.strides[row], of_b = j * b->as.strides[column];
        int64_t of_c = i * c->as.strides[row] + j * c->as.strides[column];
        if (row) {
          of_a += n * a->as.strides[0];
          of_b += n * b->as.strides[0];
          of_c += n * c->as.strides[0];
        }
        double sum = 0;
        for (int64_t k = 0; k < length; ++k) {
          sum += load(a, of_a + k * a->as.strides[column]) * load(b, of_b + k * b->as.strides[row]);
        }
        sum *= p->alpha;
        if (d->as.element) {
          int64_t index = (n * c->as.sizes[row] + i) * c->as.sizes[column] + j;
          sum += p->beta * load(d, offset_of(&d->as, index, ALL));
        }
        store_float(c, of_c, sum);
      }
    }
  }
}

/* ---- softmax, reduce ---- */

static double larger(double a, double b) { return a > b || isnan(a) ? a : b; }
static double smaller(double a, double b) { return a < b || isnan(a) ? a : b; }

static void run_softmax(const program* p) {
  const operand *x = input(p, 0), *y = output(p, 0);
  int64_t length = count_of(&x->as, p->dims), rows = count_of(&x->as, ~p->dims);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t from = offset_of(&x->as, row, ~p->dims), to = offset_of(&y->as, row, ~p->dims);
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < length; ++i) most = larger(load(x, from + offset_of(&x->as, i, p->dims)), most);
    for (int64_t i = 0; i < length; ++i) sum += exp(load(x, from + offset_of(&x->as, i, p->dims)) - most);
    for (int64_t i = 0; i < length; ++i) {
      double value = exp(load(x, from + offset_of(&x->as, i, p->dims)) - most) / sum;
      store_float(y, to + offset_of(&y->as, i, p->dims), value);
    }
  }
}

static const char* const REDUCTIONS[] = {"sum", "mean", "amax", "amin"};
enum { SUM, MEAN, AMAX, AMIN, REDUCTION_COUNT };

/* The result has the dimensions that are left, in their order. */
static void run_reduce(const program* p) {
  const operand *x = input(p, 0), *y = output(p, 0);
  int64_t length = count_of(&x->as, p->dims), rows = count_of(&x->as, ~p->dims);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t from = offset_of(&x->as, row, ~p->dims);
    double result = p->kind == AMAX ? -INFINITY : p->kind == AMIN ? INFINITY : 0;
    for (int64_t i = 0; i < length; ++i) {
      double value = load(x, from + offset_of(&x->as, i, p->dims));
      result = p->kind == AMAX ? larger(value, result) : p->kind == AMIN ? smaller(value, result) : result + value;
    }
    store_float(y, offset_of(&y->as, row, ALL), p->kind == MEAN ? result / (double)length : result);
  }
}

/* ---- What is asked for ---- */

/* An attribute that there has to be; NULL, with a message, if there is none. */
static const tg_attribute* find(const tg_program_source* source, const char* name, tg_attribute_kind kind) {
  for (uint32_t i = 0; i < source->attribute_count; ++i) {
    const tg_attribute* each = tg_attribute_at(source->attributes, i);
    if (strcmp(each->name, name) == 0 && each->kind == kind) return each;
  }
  fail(TG_ERROR_UNSUPPORTED, "%s without an attribute %s", source->name, name);
  return NULL;
}

static tg_status describe_copy(const tg_program_source* source, program* p) {
  UNUSED(source);
  p->run = run_copy;
  return TG_OK;
}

static tg_status describe_fill(const tg_program_source* source, program* p) {
  const tg_attribute* value = find(source, "value", TG_ATTRIBUTE_INTEGER);
  p->run = run_fill;
  p->fills_integer = value != NULL;
  if (!value) value = find(source, "value", TG_ATTRIBUTE_NUMBER);
  if (!value) return TG_ERROR_UNSUPPORTED;
  p->integer = value->integer;
  p->number = value->number;
  return TG_OK;
}

static tg_status describe_pointwise(const tg_program_source* source, program* p) {
  const tg_attribute* kind = find(source, "kind", TG_ATTRIBUTE_TEXT);
  const tg_attribute* names = find(source, "names", TG_ATTRIBUTE_TEXT);
  if (!kind || !names) return TG_ERROR_UNSUPPORTED;
  p->run = run_pointwise;
  for (p->kind = 0; p->kind < KIND_COUNT; ++p->kind) {
    int known = strcmp(KINDS[p->kind].kind, kind->text) == 0 && strcmp(KINDS[p->kind].names, names->text) == 0;
    if (known && source->attribute_count == 2) return TG_OK;
  }
  return fail(TG_ERROR_UNSUPPORTED, "the library has no %s of %s", kind->text, names->text);
}

static tg_status describe_matmul(const tg_program_source* source, program* p) {
  const tg_attribute* alpha = find(source, "alpha", TG_ATTRIBUTE_NUMBER);
  const tg_attribute* beta = find(source, "beta", TG_ATTRIBUTE_NUMBER);
  if (!alpha || !beta) return TG_ERROR_UNSUPPORTED;
  p->run = run_matmul;
  p->alpha = alpha->number;
  p->beta = beta->number;
  return TG_OK;
}

static tg_status describe_softmax(const tg_program_source* source, program* p) {
  const tg_attribute* dim = find(source, "dim", TG_ATTRIBUTE_INTEGER);
  if (!dim) return TG_ERROR_UNSUPPORTED;
  p->run = run_softmax;
  p->dims = 1u << dim->integer;
  return TG_OK;
}

static tg_status describe_reduce(const tg_program_source* source, program* p) {
  const tg_attribute* kind = find(source, "kind", TG_ATTRIBUTE_TEXT);
  const tg_attribute* dims = find(source, "dims", TG_ATTRIBUTE_INTEGERS);
  if (!kind || !dims) return TG_ERROR_UNSUPPORTED;
  p->run = run_reduce;
  for (uint32_t i = 0; i < dims->count; ++i) p->dims |= 1u << dims->integers[i];
  for (p->kind = 0; p->kind < REDUCTION_COUNT; ++p->kind) {
    if (strcmp(REDUCTIONS[p->kind], kind->text) == 0) return TG_OK;
  }
  return fail(TG_ERROR_UNSUPPORTED, "the library cannot reduce by %s", kind->text);
}

static const struct {
  const char* name;
  int inputs, outputs; /* -1: any number */
  int of_floats;       /* the tensors that it reads */
  tg_status (*describe)(const tg_program_source* source, program* p);
} OPERATORS[] = {
    {"copy", 1, 1, 0, describe_copy},
    {"fill", 0, 1, 0, describe_fill},
    {"pointwise", -1, 1, 1, describe_pointwise},
    {"matmul", 3, 1, 1, describe_matmul},
    {"softmax", 1, 1, 1, describe_softmax},
    {"reduce", 1, 1, 1, describe_reduce},
};
enum { OPERATOR_COUNT = sizeof(OPERATORS) / sizeof(OPERATORS[0]) };

static tg_status describe_operand(const tg_tensor* given, tensor* out) {
  if (given->element == 0) return TG_OK;
  if (!is_known(given->element)) {
    return fail(TG_ERROR_UNSUPPORTED, "the library has no elements of tg_element %u", (unsigned)given->element);
  }
  if (given->dims > MAX_DIMS) return fail(TG_ERROR_UNSUPPORTED, "the library has %d dimensions at most", MAX_DIMS);
  out->element = given->element;
  out->is_number = (given->flags & TG_TENSOR_NUMBER) != 0;
  out->dims = (int)given->dims;
  for (int d = 0; d < out->dims; ++d) {
    out->sizes[d] = given->sizes[d];
    out->strides[d] = given->strides[d];
  }
  return TG_OK;
}

/* Fills in a program, or says what the library lacks. A library that wants tensors contiguous says so in `wishes` of
 * program_supports; this one takes all strides. */
static tg_status describe(const tg_program_source* source, program* p) {
  memset(p, 0, sizeof(*p));
  if (strcmp(source->format, "operator") != 0) {
    return fail(TG_ERROR_UNSUPPORTED, "the library has operators, and reads no %s", source->format);
  }
  int which = 0;
  while (which < OPERATOR_COUNT && strcmp(OPERATORS[which].name, source->name) != 0) ++which;
  if (which == OPERATOR_COUNT) return fail(TG_ERROR_UNSUPPORTED, "the library has no %s", source->name);
  int inputs = OPERATORS[which].inputs, outputs = OPERATORS[which].outputs;
  p->input_count = (int)source->input_count;
  p->count = p->input_count + (int)source->output_count;
  if ((inputs >= 0 && p->input_count != inputs) || (int)source->output_count != outputs || p->count > MAX_TENSORS) {
    return fail(TG_ERROR_UNSUPPORTED, "the library has no %s of %d tensors", source->name, p->count);
  }
  for (int i = 0; i < p->count; ++i) {
    const tg_tensor* given = i < p->input_count ? tg_tensor_at(source->inputs, (uint32_t)i)
                                                : tg_tensor_at(source->outputs, (uint32_t)(i - p->input_count));
    tensor* made = &p->operands[i].as;
    tg_status status = describe_operand(given, made);
    if (status != TG_OK) return status;
    int is_read = i < p->input_count && made->element && !made->is_number;
    if (is_read && OPERATORS[which].of_floats && !is_float(made->element)) {
      return fail(TG_ERROR_UNSUPPORTED, "the library has no %s of integers", source->name);
    }
  }
  return OPERATORS[which].describe(source, p);
}

/* ---- The members of the table ---- */

/* Asked once for each combination of sizes and strides: it should answer quickly. */
tg_status program_supports(void* context, int32_t device, const tg_program_source* source, uint32_t* wishes) {
  UNUSED(context);
  UNUSED(wishes);
  program described;
  tg_status status = check_device(device);
  return status == TG_OK ? describe(source, &described) : status;
}

tg_status program_create(void* context, int32_t device, const tg_program_source* source, tg_program* out,
                         tg_program_info* info, const char** log) {
  UNUSED(context);
  *log = NULL;
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_program made = malloc(sizeof(*made));
  if (!made) return fail(TG_ERROR_OUT_OF_MEMORY, "the host has no memory left");
  status = describe(source, &made->description);
  if (status != TG_OK) {
    free(made);
    return status;
  }
  info->flags = 0;         /* TG_PROGRAM_ONE_AT_A_TIME, if two threads must not run it at once */
  info->scratch_bytes = 0; /* of the device's memory, which torchgraft then gives each run */
  *out = made;
  return TG_OK;
}

/* Runs may still be going on: each has a copy of the description. */
tg_status program_destroy(void* context, tg_program program) {
  UNUSED(context);
  free(program);
  return TG_OK;
}

/* In the stream's thread. What cannot be done after all is told by `fail`, with the operator's name. */
static tg_status run_now(void* argument) {
  const program* p = argument;
  p->run(p);
  return TG_OK;
}

/* Numbers count as converted to the dtype of the tensors. */
static double rounded(const program* p, double number) {
  for (int i = 0; i < p->input_count; ++i) {
    if (!p->operands[i].as.is_number) return p->operands[i].as.element == TG_ELEMENT_F32 ? (float)number : number;
  }
  return number;
}

/* The record is the caller's: what is to be kept of it is copied, and numbers are read now. */
tg_status program_run(void* context, int32_t device, tg_stream stream, const tg_run* run) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  program described = run->program->description;
  for (int i = 0; i < described.count; ++i) {
    operand* each = &described.operands[i];
    if (each->as.is_number) {
      double number = each->as.element == TG_ELEMENT_I64 ? (double)*(const int64_t*)run->addresses[i]
                                                         : *(const double*)run->addresses[i];
      described.numbers[i] = rounded(&described, number);
    } else {
      each->place = on_host(run->addresses[i]);
    }
  }
  return submit(stream, run_now, &described, sizeof(described));
}
