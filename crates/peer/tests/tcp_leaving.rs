//! Closing a transport leaves nothing behind. In a file of its own, since it counts what the
//! process has.

mod common;

use common::job::{Job, get_some};
use common::nodes;

fn threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("belady-")).count()
}

fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn threads_and_sockets_are_gone_when_all_are_closed() {
    let before = sockets();
    for _ in 0..3 {
        let nodes = nodes(3, |config| config);
        let jobs: Vec<_> = nodes.iter().map(Job::open).collect();
        for (from, node) in (0..).zip(&nodes) {
            for to in (0..3).filter(|&to| to != from) {
                get_some(&**node, to);
            }
        }
        assert_eq!(threads(), 3 + 6, "one that accepts, and one a connection");
        for node in &nodes {
            belady_peer::Transport::close(&**node);
        }
        assert_eq!(threads(), 0);
        drop((jobs, nodes));
        assert_eq!(sockets(), before);
    }
}
