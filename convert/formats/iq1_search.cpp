#include "convert/formats/iq1_search.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "convert/formats/code_search.h"
#include "convert/formats/codebook.h"

namespace assay {

void sort_columns(int n, const float* x, uint8_t* order) {
  std::iota(order, order + n, uint8_t{0});
  // Insertion sort: stable, and blocks are short.
  for (int i = 1; i < n; ++i) {
    const uint8_t column = order[i];
    int at = i;
    for (; at > 0 && x[column] < x[order[at - 1]]; --at) order[at] = order[at - 1];
    order[at] = column;
  }
}

void put_levels(int n, const uint8_t* order, int first, int second, uint8_t* levels) {
  for (int j = 0; j < n; ++j) {
    levels[order[j]] = static_cast<uint8_t>(j < first ? 0 : (j < second ? 1 : 2));
  }
}

int snap_iq1(const float* x, const float* weights, float scale, const float* points,
             uint8_t* levels, bool* moved) {
  const Codebook& book = iq1_codebook();
  uint32_t word = 0;
  for (int k = 0; k < 8; ++k) word |= static_cast<uint32_t>(levels[k]) << (2 * k);
  if (const int position = book.find(word); position >= 0) return position;
  *moved = true;
  const auto neighbours = book.neighbours(word);
  float best = std::numeric_limits<float>::max();
  int nearest = neighbours[0];
  for (const uint16_t position : neighbours) {
    const uint8_t* candidate = book.levels(position);
    float distance = 0.0f;
    for (int k = 0; k < 8; ++k) {
      const float difference = scale * points[candidate[k]] - x[k];
      distance += weights[k] * difference * difference;
    }
    if (distance < best) {
      best = distance;
      nearest = position;
    }
  }
  std::memcpy(levels, book.levels(nearest), 8);
  return nearest;
}

void weigh_iq1(int n, float sigma2, const float* x, const float* importance, float* weights) {
  if (importance != nullptr) {
    weigh_by_importance(n, sigma2, x, importance, weights);
  } else {
    for (int i = 0; i < n; ++i) weights[i] = x[i] * x[i];
  }
}

}  // namespace assay
