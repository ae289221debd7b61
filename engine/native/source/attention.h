// Attention over paged keys and values: what each instruction set provides of it.
#pragma once

#include <cstdint>

namespace headrace {

constexpr int ATTENTION_BLOCK = 64;  // positions that are weighed at once

// Keys and values of one sequence and one head, at positions begin .. end.
struct Span {
  const uint8_t *keys, *values;  // of page 0
  const int64_t *pages;
  int64_t page_tokens, page_bytes, token_bytes;
  int64_t begin, end;

  int64_t offset(int64_t position) const {
    return pages[position / page_tokens] * page_bytes + position % page_tokens * token_bytes;
  }
};

// Queries that share a head of keys: row r belongs to the token at position context + r / group and
// sees positions up to its own. What a span adds to a row is `sums` (weighted values) over `totals`
// (weights), both times the exponential of `greatest`.
struct QueryRows {
  int64_t rows, group, context, dim;
  const float *q;            // [rows][dim], scaled
  float *sums;               // [rows][dim]
  float *turned;             // [dim][ATTENTION_BLOCK]: room for keys, where there are many rows
  float *greatest, *totals;  // [rows]
};

// By the type of keys and values: HEADRACE_X_*.
struct AttentionKernel {
  // Adds a span to rows: to a few, or to many, for which keys are turned into columns first.
  using Attend = void (*)(const Span &, const QueryRows &);
  Attend few[2], many[2];
  int width;    // float32 lanes
  int lane[2];  // neighbouring columns that one lane takes: of sums, and of the q of few rows
  float (*exponential)(float);

  // Where column i lies in a row, by the same type.
  int64_t place(int64_t i, int32_t type) const {
    const int64_t by = lane[type], block = width * by, within = i % block;
    return i - within + within % by * width + within / by;
  }
};

}  // namespace headrace
