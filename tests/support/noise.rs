//! Bytes that do not compress, the same at each run.

// Each test binary uses its own part of this.
#![allow(dead_code, unreachable_pub)]

/// Others for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    from_state(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, len)
}

/// What a xorshift generator makes from a state that is not 0.
pub fn from_state(mut state: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
