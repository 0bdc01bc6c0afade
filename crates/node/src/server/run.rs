//! What a process holds of a run ends with the run: a process that stays serves many.

use belady_base::sync::{Arc, lock};

use super::NodeServer;

/// Keeps the engines of a run and its place among other nodes: the last member of a run that is
/// dropped frees them. Jobs keep what they use, and the caches of an engine that serves all runs
/// stay. A session is a member of each of its runs.
#[derive(Debug)]
pub struct RunMember {
    server: Arc<NodeServer>,
    run: u64,
}

impl RunMember {
    pub fn new(server: &Arc<NodeServer>, run: u64) -> Self {
        *lock(&server.runs).entry(run).or_default() += 1;
        Self { server: server.clone(), run }
    }
}

impl Drop for RunMember {
    fn drop(&mut self) {
        let Self { server, run } = self;
        let mut runs = lock(&server.runs);
        let left = runs.get_mut(run).map_or(0, |members| {
            *members -= 1;
            *members
        });
        if left > 0 {
            return;
        }
        runs.remove(run);
        let ended = (
            server.gatherings.end(*run),
            lock(&server.engines).extract_if(|(of, _), _| of == run).collect::<Vec<_>>(),
            server.nodes.end(*run),
        );
        // Without the locks: it takes time to end threads and connections.
        drop(runs);
        drop(ended);
    }
}
