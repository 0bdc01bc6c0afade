//! A link from one node to another that can be cut and delayed, and can flip bits.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Shorter chunks contain no sample, so no bit of them is flipped.
const FLIPPED: usize = 1500;
/// The interval at which a held link checks whether it is released.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub struct State {
    pub is_cut: AtomicBool,
    /// Bytes wait: peers notice only the time.
    pub is_held: AtomicBool,
    /// Milliseconds.
    pub delay: AtomicU64,
    pub delayed: AtomicU64,
    /// How many of the next chunks have a bit flipped.
    pub flips: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

/// The link from one node to another, with requests and replies.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub port: u16,
    pub state: Arc<State>,
}

impl Proxy {
    /// Starts a proxy; `target` is a file with the port of the called node.
    pub fn open(target: PathBuf) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let of_thread = state.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                connect(near, &target, &of_thread);
            }
        });
        Ok(Self { port, state })
    }

    /// Ends all connections, and passes no new ones until [`Self::mend`].
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        let mut connections = self.connections();
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.state.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(near: TcpStream, target: &PathBuf, state: &Arc<State>) {
    if state.is_cut.load(Ordering::SeqCst) {
        return;
    }
    let port = std::fs::read_to_string(target).ok().and_then(|text| text.parse::<u16>().ok());
    let Some(far) = port.and_then(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
    else {
        return;
    };
    let _ = near.set_nodelay(true);
    let _ = far.set_nodelay(true);
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    if let (Ok(near), Ok(far)) = (near.try_clone(), far.try_clone()) {
        let mut connections = state.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.extend([near, far]);
    }
    let (asks, answers) = (state.clone(), state.clone());
    std::thread::spawn(move || copy(near, far, &asks, false));
    std::thread::spawn(move || copy(far_again, near_again, &answers, true));
}

/// Ends when either end does.
fn copy(mut from: TcpStream, mut to: TcpStream, state: &State, may_flip: bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while state.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
        }
        let delay = state.delay.load(Ordering::SeqCst);
        if delay > 0 {
            state.delayed.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(delay));
        }
        let wanted = |flips: u64| flips.checked_sub(1);
        if may_flip
            && count >= FLIPPED
            && state.flips.fetch_update(Ordering::SeqCst, Ordering::SeqCst, wanted).is_ok()
        {
            buffer[count / 2] ^= 0x10;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
