//! Memory for parts, used again: what the allocator is given back it keeps in pieces, and a relay then takes up twice
//! what it holds. Fresh memory also costs a page fault per 4 KiB.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Shorter ranges are left to the allocator, in bytes: it serves them well.
const SMALLEST_BYTES: usize = 1024 * 1024;

/// Buffers of parts that are in use, and those that wait for the next part. None wait once nobody uses any.
pub(crate) struct Buffers {
    /// What all of them may take up, in bytes, as long as buffers wait that could go.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Vec<u8>>,
    in_use: usize,
    /// Capacity of all, in bytes.
    held: usize,
}

/// Room for the bytes of one range.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    /// None yet.
    pub(crate) fn new(limit: usize) -> Arc<Buffers> {
        Arc::new(Buffers {
            limit,
            state: Mutex::default(),
        })
    }

    /// An empty buffer that takes `length` bytes without growing.
    pub(crate) fn take(self: &Arc<Buffers>, length: usize) -> Buffer {
        if length < SMALLEST_BYTES {
            return Buffer {
                bytes: Vec::with_capacity(length),
                home: None,
            };
        }
        let mut state = self.state();
        // Not one that is much larger: those who need that would have to make another.
        let fits = |b: &Vec<u8>| (length..=2 * length).contains(&b.capacity());
        let mut idle = state.idle.iter().enumerate().filter(|(_, b)| fits(b));
        let found = idle.next().map(|(at, _)| at);
        let bytes = match found {
            Some(at) => state.idle.swap_remove(at),
            None => {
                while state.held + length > self.limit
                    && let Some(other) = state.idle.pop()
                {
                    state.held -= other.capacity();
                }
                let made = Vec::with_capacity(length);
                state.held += made.capacity();
                made
            }
        };
        state.in_use += 1;
        drop(state);
        Buffer {
            bytes,
            home: Some(Arc::clone(self)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// Where the bytes go.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes; the buffer goes home with the last one who holds them.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else {
            return;
        };
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut state = home.state();
        state.in_use -= 1;
        state.idle.push(bytes);
        if state.in_use == 0 {
            state.idle.clear();
            state.held = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn held(buffers: &Buffers) -> (usize, usize) {
        let state = buffers.state();
        let idle: usize = state.idle.iter().map(Vec::capacity).sum();
        (state.held / MIB, idle / MIB)
    }

    #[test]
    fn a_buffer_is_used_again_while_others_are_in_use() {
        let buffers = Buffers::new(32 * MIB);
        let first = buffers.take(8 * MIB);
        let mut second = buffers.take(8 * MIB);
        second.bytes().extend_from_slice(b"part");
        let at = second.bytes().as_ptr();
        let shared = second.freeze();
        let slice = shared.slice(1..3);
        drop(shared);
        assert_eq!(held(&buffers), (16, 0), "someone still holds a slice");
        assert_eq!(&slice[..], b"ar");
        drop(slice);
        assert_eq!(held(&buffers), (16, 8));
        // The last part of an object is shorter.
        let mut third = buffers.take(5 * MIB);
        assert_eq!(third.bytes().as_ptr(), at);
        assert!(third.bytes().is_empty() && third.bytes().capacity() >= 8 * MIB);
        drop((first, third));
        assert_eq!(held(&buffers), (0, 0), "nobody uses any");
    }

    #[test]
    fn buffers_that_wait_make_room_for_others() {
        let buffers = Buffers::new(32 * MIB);
        let stays = buffers.take(8 * MIB);
        let (a, b) = (buffers.take(8 * MIB), buffers.take(8 * MIB));
        drop((a, b));
        assert_eq!(held(&buffers), (24, 16));
        let large = buffers.take(24 * MIB);
        assert_eq!(held(&buffers), (32, 0));
        // A much larger one is not taken for a small part.
        drop(large);
        let small = buffers.take(2 * MIB);
        assert_eq!(held(&buffers), (10, 0));
        drop((stays, small));
    }

    #[test]
    fn short_ranges_are_left_to_the_allocator() {
        let buffers = Buffers::new(MIB);
        let short = buffers.take(MIB - 1);
        assert_eq!(held(&buffers), (0, 0));
        drop(short);
        assert_eq!(held(&buffers), (0, 0));
    }
}
