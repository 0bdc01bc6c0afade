//! A proxy between two nodes that injects faults.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::LOOPBACK;

/// What happens to the bytes from the listening node.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    Pass,
    /// The connection ends after this many bytes.
    Cut(usize),
    /// No byte passes after this many, in either direction.
    Stall(usize),
    /// Bytes after this many pass one by one.
    Trickle(usize),
    /// Pieces of 64 KiB are delayed by this many milliseconds each.
    Slow(u64),
    /// A bit is flipped in the byte after this many.
    Flip(usize),
}

pub struct Proxy {
    pub address: SocketAddr,
    pub mode: Arc<Mutex<Mode>>,
    pub connections: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn to(target: SocketAddr, mode: Mode) -> Self {
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, connections) = (Arc::new(Mutex::new(mode)), Arc::new(AtomicUsize::new(0)));
        let proxy = Self { address, mode: mode.clone(), connections: connections.clone() };
        std::thread::spawn(move || {
            for near in listener.incoming() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (near, far) = (near.unwrap(), TcpStream::connect(target).unwrap());
                let (near_again, far_again) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let mode = *mode.lock().unwrap();
                std::thread::spawn(move || copy(near, far, Mode::Pass));
                std::thread::spawn(move || copy(far_again, near_again, mode));
            }
        });
        proxy
    }
}

/// Ends when either end does.
fn copy(mut from: TcpStream, mut to: TcpStream, mode: Mode) {
    let mut buffer = vec![0; 64 << 10];
    let mut done = 0;
    loop {
        if matches!(mode, Mode::Stall(at) if done >= at) {
            // The threads end with the test's process.
            std::thread::sleep(Duration::from_mins(10));
        }
        let most = match mode {
            Mode::Cut(at) if done >= at => break,
            Mode::Trickle(at) if done >= at => Some(1),
            Mode::Cut(at) | Mode::Stall(at) | Mode::Trickle(at) => Some(at - done),
            _ => None,
        };
        let most = most.unwrap_or(buffer.len()).min(buffer.len());
        let Ok(count @ 1..) = from.read(&mut buffer[..most]) else { break };
        if let Mode::Flip(at) = mode
            && (done..done + count).contains(&at)
        {
            buffer[at - done] ^= 1;
        }
        if matches!(mode, Mode::Trickle(at) if done >= at) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Mode::Slow(pause) = mode {
            std::thread::sleep(Duration::from_millis(pause));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        done += count;
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
