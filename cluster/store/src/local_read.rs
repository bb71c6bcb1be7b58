//! Reads large local files. A reader thread fills buffers, and the calling thread consumes them, usually to hash them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::hash::Hasher;

/// Size of a buffer, bytes. A buffer of this size stays in the CPU cache that the two threads share.
const PIECE: usize = 1 << 20;

/// Size of the buffer of [`pieces_inline`], bytes: half of a typical L2 cache. The other half is for the data of the
/// consumer.
const INLINE_PIECE: usize = 512 << 10;

/// Number of buffers that circulate between the two threads.
const BUFFERS: usize = 4;

/// Passes the first `bytes` bytes of `file` to `take`, in order.
pub(crate) fn pieces(file: &Path, bytes: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(file)?;
    thread::scope(|scope| {
        let (full_sender, full) = sync_channel::<Vec<u8>>(BUFFERS);
        let (empty_sender, empty) = sync_channel::<Vec<u8>>(BUFFERS);
        let reader = scope.spawn(move || {
            let mut left = bytes;
            let mut fresh = BUFFERS;
            while left > 0 {
                let length = left.min(PIECE as u64);
                let mut buffer = next_buffer(&mut fresh, &empty);
                buffer.resize(length as usize, 0);
                file.read_exact(&mut buffer)?;
                left -= length;
                if full_sender.send(buffer).is_err() {
                    break;
                }
            }
            Ok(())
        });
        for buffer in full {
            take(&buffer);
            // This fails once the reader thread has ended after its last read.
            let _ = empty_sender.send(buffer);
        }
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Like [`pieces`], but on the calling thread only. Faster if `take` costs less than passing a buffer between threads.
pub(crate) fn pieces_inline(file: &Path, bytes: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(file)?;
    let mut buffer = vec![0; bytes.min(INLINE_PIECE as u64) as usize];
    let mut left = bytes;
    while left > 0 {
        let piece = &mut buffer[..left.min(INLINE_PIECE as u64) as usize];
        file.read_exact(piece)?;
        take(piece);
        left -= piece.len() as u64;
    }
    Ok(())
}

fn next_buffer(fresh: &mut usize, empty: &std::sync::mpsc::Receiver<Vec<u8>>) -> Vec<u8> {
    if *fresh > 0 {
        *fresh -= 1;
        return Vec::with_capacity(PIECE);
    }
    empty.recv().unwrap_or_default()
}

/// Fills `whole` from the start of `file` and returns the SHA-256 of these bytes. Calls `count` with the size of each
/// piece.
pub(crate) fn whole(file: &Path, whole: &mut [u8], count: impl Fn(u64)) -> io::Result<String> {
    let mut file = File::open(file)?;
    thread::scope(|scope| {
        let (sender, read) = sync_channel::<&[u8]>(whole.len() / PIECE + 1);
        let reader = scope.spawn(move || {
            for piece in whole.chunks_mut(PIECE) {
                file.read_exact(piece)?;
                if sender.send(piece).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let mut hasher = Hasher::new();
        read.iter().for_each(|piece| {
            hasher.update(piece);
            count(piece.len() as u64);
        });
        let done: io::Result<()> = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.map(|()| hasher.finish())
    })
}
