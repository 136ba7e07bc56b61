#include "builtins.h"

#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

namespace ocl {
namespace {

// From here the preprocessor does the work: B_<signature> declares one overload of f for a type t and a width n (empty
// for scalars), B_<types> all of them. Where a scalar and a vector form are one for scalars, a function is declared
// twice, which C allows.
constexpr std::string_view kMacros = R"(
#define B_CONST __attribute__((overloadable, const))
#define B_PURE __attribute__((overloadable, pure))
#define B_PLAIN __attribute__((overloadable))
#define B_SYNC __attribute__((overloadable, convergent))
#ifdef cl_khr_fp16
#define B_HALF(...) __VA_ARGS__
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#else
#define B_HALF(...)
#endif
#ifdef cl_khr_fp64
#define B_DOUBLE(...) __VA_ARGS__
#else
#define B_DOUBLE(...)
#endif

#define B_VECTORS(m, f, t) m(f, t, 2) m(f, t, 3) m(f, t, 4) m(f, t, 8) m(f, t, 16)
#define B_WIDTHS(m, f, t) m(f, t, ) B_VECTORS(m, f, t)
#define B_FLOATS(m, f) B_WIDTHS(m, f, float) B_DOUBLE(B_WIDTHS(m, f, double)) B_HALF(B_WIDTHS(m, f, half))
#define B_SIGNED(m, f) B_WIDTHS(m, f, char) B_WIDTHS(m, f, short) B_WIDTHS(m, f, int) B_WIDTHS(m, f, long)
#define B_UNSIGNED(m, f) B_WIDTHS(m, f, uchar) B_WIDTHS(m, f, ushort) B_WIDTHS(m, f, uint) B_WIDTHS(m, f, ulong)
#define B_INTS(m, f) B_SIGNED(m, f) B_UNSIGNED(m, f)
#define B_INT32(m, f) B_WIDTHS(m, f, int) B_WIDTHS(m, f, uint)
#define B_ALL(m, f) B_INTS(m, f) B_FLOATS(m, f)

#define B_T(f, t, n) t##n B_CONST f(t##n);
#define B_TT(f, t, n) t##n B_CONST f(t##n, t##n);
#define B_TTT(f, t, n) t##n B_CONST f(t##n, t##n, t##n);
#define B_TT_TS(f, t, n) B_TT(f, t, n) t##n B_CONST f(t##n, t);
#define B_TT_ST(f, t, n) B_TT(f, t, n) t##n B_CONST f(t, t##n);
#define B_TTT_TSS(f, t, n) B_TTT(f, t, n) t##n B_CONST f(t##n, t, t);
#define B_TTT_TTS(f, t, n) B_TTT(f, t, n) t##n B_CONST f(t##n, t##n, t);
#define B_TTT_SST(f, t, n) B_TTT(f, t, n) t##n B_CONST f(t, t, t##n);
#define B_TI(f, t, n) t##n B_CONST f(t##n, int##n);
#define B_TI_TS(f, t, n) B_TI(f, t, n) t##n B_CONST f(t##n, int);
#define B_T_OUT(f, t, n, o) t##n B_PLAIN f(t##n, __global o##n*); t##n B_PLAIN f(t##n, __local o##n*); \
  t##n B_PLAIN f(t##n, __private o##n*);
#define B_T_OUT_T(f, t, n) B_T_OUT(f, t, n, t)
#define B_T_OUT_INT(f, t, n) B_T_OUT(f, t, n, int)
#define B_TO_INT(f, t, n) int##n B_CONST f(t##n);
#define B_TO_UNSIGNED(f, t, n) u##t##n B_CONST f(t##n);
#define B_ANY(f, t, n) int B_CONST f(t##n);

#define B_TEST_INT(f, t, n) int##n B_CONST f(t##n);
#define B_TEST_LONG(f, t, n) long##n B_CONST f(t##n);
#define B_TEST_SHORT(f, t, n) short##n B_CONST f(t##n);
#define B_TEST(f) B_WIDTHS(B_TEST_INT, f, float) \
  B_DOUBLE(B_TEST_INT(f, double, ) B_VECTORS(B_TEST_LONG, f, double)) \
  B_HALF(B_TEST_INT(f, half, ) B_VECTORS(B_TEST_SHORT, f, half))
#define B_COMPARE_INT(f, t, n) int##n B_CONST f(t##n, t##n);
#define B_COMPARE_LONG(f, t, n) long##n B_CONST f(t##n, t##n);
#define B_COMPARE_SHORT(f, t, n) short##n B_CONST f(t##n, t##n);
#define B_COMPARE(f) B_WIDTHS(B_COMPARE_INT, f, float) \
  B_DOUBLE(B_COMPARE_INT(f, double, ) B_VECTORS(B_COMPARE_LONG, f, double)) \
  B_HALF(B_COMPARE_INT(f, half, ) B_VECTORS(B_COMPARE_SHORT, f, half))

#define B_SELECT8(f, t, n) t##n B_CONST f(t##n, t##n, char##n); t##n B_CONST f(t##n, t##n, uchar##n);
#define B_SELECT16(f, t, n) t##n B_CONST f(t##n, t##n, short##n); t##n B_CONST f(t##n, t##n, ushort##n);
#define B_SELECT32(f, t, n) t##n B_CONST f(t##n, t##n, int##n); t##n B_CONST f(t##n, t##n, uint##n);
#define B_SELECT64(f, t, n) t##n B_CONST f(t##n, t##n, long##n); t##n B_CONST f(t##n, t##n, ulong##n);
#define B_SELECT(f) B_WIDTHS(B_SELECT8, f, char) B_WIDTHS(B_SELECT8, f, uchar) \
  B_WIDTHS(B_SELECT16, f, short) B_WIDTHS(B_SELECT16, f, ushort) B_HALF(B_WIDTHS(B_SELECT16, f, half)) \
  B_WIDTHS(B_SELECT32, f, int) B_WIDTHS(B_SELECT32, f, uint) B_WIDTHS(B_SELECT32, f, float) \
  B_WIDTHS(B_SELECT64, f, long) B_WIDTHS(B_SELECT64, f, ulong) B_DOUBLE(B_WIDTHS(B_SELECT64, f, double))

#define B_NUMBERS(m, f, n) m(f, char, n) m(f, short, n) m(f, int, n) m(f, long, n) m(f, uchar, n) m(f, ushort, n) \
  m(f, uint, n) m(f, ulong, n) m(f, float, n) B_DOUBLE(m(f, double, n)) B_HALF(m(f, half, n))
#define B_LOAD(f, t, n) t##n B_PURE f(size_t, const __constant t*); t##n B_PURE f(size_t, const __global t*); \
  t##n B_PURE f(size_t, const __local t*); t##n B_PURE f(size_t, const __private t*);
#define B_STORE(f, t, n) void B_PLAIN f(t##n, size_t, __global t*); void B_PLAIN f(t##n, size_t, __local t*); \
  void B_PLAIN f(t##n, size_t, __private t*);
#define B_LOAD_HALF(f, n) float##n B_PURE f(size_t, const __constant half*); \
  float##n B_PURE f(size_t, const __global half*); float##n B_PURE f(size_t, const __local half*); \
  float##n B_PURE f(size_t, const __private half*);
#define B_STORE_AS_HALF(f, t, n) void B_PLAIN f(t##n, size_t, __global half*); \
  void B_PLAIN f(t##n, size_t, __local half*); void B_PLAIN f(t##n, size_t, __private half*);
#define B_STORE_HALF(f, n) B_STORE_AS_HALF(f, float, n) B_DOUBLE(B_STORE_AS_HALF(f, double, n))

#define B_ATOMIC1(f, t) t B_PLAIN f(volatile __global t*); t B_PLAIN f(volatile __local t*);
#define B_ATOMIC2(f, t) t B_PLAIN f(volatile __global t*, t); t B_PLAIN f(volatile __local t*, t);
#define B_ATOMIC3(f, t) t B_PLAIN f(volatile __global t*, t, t); t B_PLAIN f(volatile __local t*, t, t);

#define B_CONVERT(f, d, n) B_TO(f, d, n, char) B_TO(f, d, n, uchar) B_TO(f, d, n, short) B_TO(f, d, n, ushort) \
  B_TO(f, d, n, int) B_TO(f, d, n, uint) B_TO(f, d, n, long) B_TO(f, d, n, ulong) B_TO(f, d, n, float) \
  B_DOUBLE(B_TO(f, d, n, double)) B_HALF(B_TO(f, d, n, half))
#define B_TO(f, d, n, t) d##n B_CONST f(t##n);
)";

constexpr std::string_view kEnd = R"(
#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : disable
#endif
#line 1
)";

// How functions are declared, $ being the name, and which. A name is here with all its overloads or not at all:
// with some of them missing a call would mean a conversion.
struct Family {
  std::string_view declaration;
  const char* names;
};

constexpr Family kFamilies[] = {
    {"size_t B_CONST $(uint);",
     "get_global_id get_local_id get_group_id get_global_size get_local_size get_num_groups get_global_offset"},
    {"uint B_CONST $(void);", "get_work_dim"},
    {"void B_SYNC $(cl_mem_fence_flags);", "barrier"},
    {"void B_PLAIN $(cl_mem_fence_flags);", "mem_fence read_mem_fence write_mem_fence"},

    {"B_FLOATS(B_T, $)",
     "acos acosh acospi asin asinh asinpi atan atanh atanpi cbrt ceil cos cosh cospi degrees erf erfc exp exp10 exp2 "
     "expm1 fabs floor lgamma log log10 log1p log2 logb radians rint round rsqrt sign sin sinh sinpi sqrt tan tanh "
     "tanpi tgamma trunc"},
    {"B_FLOATS(B_TT, $)", "atan2 atan2pi copysign fdim fmod hypot maxmag minmag nextafter pow powr remainder"},
    {"B_FLOATS(B_TT_TS, $)", "fmax fmin"},
    {"B_FLOATS(B_TTT, $)", "fma mad"},
    {"B_FLOATS(B_TTT_TTS, $)", "mix"},
    {"B_FLOATS(B_TT_ST, $)", "step"},
    {"B_FLOATS(B_TTT_SST, $)", "smoothstep"},
    {"B_FLOATS(B_TI, $)", "pown rootn"},
    {"B_FLOATS(B_TI_TS, $)", "ldexp"},
    {"B_FLOATS(B_TO_INT, $)", "ilogb"},
    {"B_FLOATS(B_T_OUT_T, $)", "fract modf sincos"},
    {"B_FLOATS(B_T_OUT_INT, $)", "frexp lgamma_r"},
    {"B_WIDTHS(B_T, $, float)",
     "half_cos half_exp half_exp10 half_exp2 half_log half_log10 half_log2 half_recip half_rsqrt half_sin half_sqrt "
     "half_tan native_cos native_exp native_exp10 native_exp2 native_log native_log10 native_log2 native_recip "
     "native_rsqrt native_sin native_sqrt native_tan"},
    {"B_WIDTHS(B_TT, $, float)", "half_divide half_powr native_divide native_powr"},
    {"B_TEST($)", "isfinite isinf isnan isnormal signbit"},
    {"B_COMPARE($)",
     "isequal isgreater isgreaterequal isless islessequal islessgreater isnotequal isordered isunordered"},

    {"B_SIGNED(B_TO_UNSIGNED, $) B_UNSIGNED(B_T, $)", "abs"},
    {"B_INTS(B_T, $)", "clz popcount"},
    {"B_INTS(B_TT, $)", "add_sat hadd mul_hi rhadd rotate sub_sat"},
    {"B_INTS(B_TTT, $)", "mad_hi mad_sat"},
    {"B_INT32(B_TT, $)", "mul24"},
    {"B_INT32(B_TTT, $)", "mad24"},
    {"B_ALL(B_TT_TS, $)", "max min"},
    {"B_ALL(B_TTT_TSS, $)", "clamp"},
    {"B_ALL(B_TTT, $)", "bitselect"},
    {"B_SELECT($)", "select"},
    {"B_SIGNED(B_ANY, $)", "all any"},

    {"B_NUMBERS(B_LOAD, $, #)", "vload2 vload3 vload4 vload8 vload16"},
    {"B_NUMBERS(B_STORE, $, #)", "vstore2 vstore3 vstore4 vstore8 vstore16"},
    {"B_LOAD_HALF($, #)",
     "vload_half vload_half2 vload_half3 vload_half4 vload_half8 vload_half16 vloada_half2 vloada_half3 vloada_half4 "
     "vloada_half8 vloada_half16"},
    {"B_STORE_HALF($, #) B_STORE_HALF($_rte, #) B_STORE_HALF($_rtz, #) B_STORE_HALF($_rtp, #) B_STORE_HALF($_rtn, #)",
     "vstore_half vstore_half2 vstore_half3 vstore_half4 vstore_half8 vstore_half16 vstorea_half2 vstorea_half3 "
     "vstorea_half4 vstorea_half8 vstorea_half16"},

    {"B_ATOMIC1($, int) B_ATOMIC1($, uint)", "atomic_inc atomic_dec"},
    {"B_ATOMIC2($, int) B_ATOMIC2($, uint)",
     "atomic_add atomic_and atomic_max atomic_min atomic_or atomic_sub atomic_xor"},
    {"B_ATOMIC2($, int) B_ATOMIC2($, uint) B_ATOMIC2($, float)", "atomic_xchg"},
    {"B_ATOMIC3($, int) B_ATOMIC3($, uint)", "atomic_cmpxchg"},
};

// The digits at the end of a name or, before a suffix as in vstore_half8_rte, of its part in front.
std::string_view width_of(std::string_view name) {
  size_t first = name.size();
  while (first > 0 && std::isdigit(static_cast<unsigned char>(name[first - 1]))) --first;
  return name.substr(first);
}

std::string filled_in(std::string_view declaration, std::string_view name) {
  std::string text;
  for (char c : declaration) {
    if (c == '$')
      text += name;
    else if (c == '#')
      text += width_of(name);
    else
      text += c;
  }
  return text + "\n";
}

using Table = std::map<std::string, std::string, std::less<>>;

Table make_table() {
  Table table;
  for (const Family& family : kFamilies) {
    std::istringstream names(family.names);
    for (std::string name; names >> name;) table.emplace(name, filled_in(family.declaration, name));
  }
  return table;
}

// "convert_uchar4_sat_rte": every type of that width to uchar4.
std::string declare_conversion(std::string_view word) {
  std::string_view to = word.substr(sizeof("convert_") - 1);
  to = to.substr(0, to.find('_'));
  const std::string_view width = width_of(to);
  const std::string_view base = to.substr(0, to.size() - width.size());
  return "B_CONVERT(" + std::string(word) + ", " + std::string(base) + ", " + std::string(width) + ")\n";
}

}  // namespace

std::string declare_builtins(const std::string& source) {
  static const Table table = make_table();
  std::set<std::string_view> words;
  std::string text(kMacros);
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t end, begin = 0; begin < source.size(); begin = end) {
    end = begin + 1;
    if (!is_part(source[begin])) continue;
    while (end < source.size() && is_part(source[end])) ++end;
    std::string_view word(source.data() + begin, end - begin);
    const size_t rounding = word.rfind("_rt");  // vstore_half_rte is declared with vstore_half
    if (word.starts_with("vstore") && rounding != word.npos) word = word.substr(0, rounding);
    if (!words.insert(word).second) continue;
    if (word.starts_with("convert_")) {
      text += declare_conversion(word);
    } else if (const auto found = table.find(word); found != table.end()) {
      text += found->second;
    }
  }
  return text.append(kEnd);
}

}  // namespace ocl
