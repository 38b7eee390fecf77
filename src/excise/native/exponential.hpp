// e^x for x <= 0, the same bits everywhere, which libm does not promise; no branch, so that loops of it become vectors.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

inline float exponential(float x) {
    x = x > -104.0f ? x : -104.0f;  // also where x is no number
    const float magic = 12582912.0f, n = (x * 1.44269504088896341f + magic) - magic;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float y = p * (r * r) + r + 1.0f;
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return n < -125.0f ? 0.0f : y * power;
}

}  // namespace
