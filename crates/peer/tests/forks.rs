//! A forked child does not inherit its parent's connections: the others would not notice that the
//! parent has ended for as long as the child runs.

mod common;

use std::time::Duration;

use belady_peer::rendezvous::{RendezvousAddress, tcp};
use belady_peer::tcp::TcpConfig;
use belady_peer::{JobKey, JobWorld};
use common::job::{Job, get_some};
use common::nodes;

/// Counts sockets among the first descriptors. Allocates nothing, so a forked child may call it.
fn sockets() -> i32 {
    let is_socket = |number: i32| {
        // SAFETY: all zeros are a valid `stat`, which the call fills if the descriptor exists.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let told = unsafe { libc::fstat(number, &raw mut found) };
        told == 0 && found.st_mode & libc::S_IFMT == libc::S_IFSOCK
    };
    (0..512).map(|number| i32::from(is_socket(number))).sum()
}

/// Counts the sockets of a forked child.
fn sockets_of_a_child() -> i32 {
    // SAFETY: the child makes system calls only, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(sockets()) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above, and `status` may be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WEXITSTATUS(status)
}

#[test]
fn a_forked_child_inherits_no_connection_to_peers() {
    for unix in [true, false] {
        let before = sockets();
        let nodes = nodes(2, |config| TcpConfig { unix, ..config });
        let (_job, _serving) = Job::open(&nodes[1]);
        get_some(&*nodes[0], 1);
        assert!(sockets() >= before + 4, "two that listen, and both ends of a connection");
        assert_eq!(sockets_of_a_child(), before);
        get_some(&*nodes[0], 1);
    }
}

#[test]
fn a_forked_child_inherits_no_connection_to_the_rendezvous_server() {
    let before = sockets();
    let key = JobKey::random().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place: RendezvousAddress = free.local_addr().unwrap().to_string().parse().unwrap();
    drop(free);
    let limit = Duration::from_mins(1);
    let meet = |rank| {
        let options = tcp::TcpRendezvousOptions {
            world: JobWorld { rank, size: 2 },
            job: String::new(),
            key: key.clone(),
            limit,
        };
        tcp::start(&place, options).unwrap()
    };
    let meets = [meet(0), meet(1)];
    std::thread::scope(|scope| {
        scope.spawn(|| meets[1].exchange("a", &[1]).unwrap());
        assert_eq!(meets[0].exchange("a", &[0]).unwrap(), [[0], [1]]);
    });
    assert!(sockets() >= before + 3, "one that listens, and both ends of a connection");
    assert_eq!(sockets_of_a_child(), before);
}
