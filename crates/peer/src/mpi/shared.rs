//! The state that the threads of a transport share.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use belady_base::sync::{Arc, Condvar, Mutex, lock};

use super::buffers::MessageBuffers;
use super::calls::{Calls, MpiEnd};
use super::collective::Collective;
use super::comm::OutgoingMessage;
use super::serve::Inbox;
use crate::dispatcher::Dispatcher;

#[derive(Debug, Default)]
pub struct MpiShared {
    pub dispatcher: Arc<Dispatcher>,
    pub calls: Calls,
    pub inbox: Inbox,
    pub buffers: Arc<MessageBuffers>,
    commands: Mutex<MpiCommands>,
    ordered: Condvar,
    ended: Mutex<bool>,
    end: Condvar,
}

/// What the progress thread has to do.
#[derive(Debug, Default)]
pub struct MpiCommands {
    pub send: VecDeque<OutgoingMessage>,
    pub gather: VecDeque<Collective>,
    pub leave: bool,
    /// The progress thread has ended.
    over: bool,
}

impl MpiShared {
    pub fn send(&self, message: OutgoingMessage) {
        let mut commands = lock(&self.commands);
        if !commands.over {
            commands.send.push_back(message);
            drop(commands);
            self.ordered.notify_one();
        }
    }

    /// After the end of the progress thread, dropping the collective wakes its caller with an
    /// error.
    pub fn gather(&self, collective: Collective) {
        let mut commands = lock(&self.commands);
        if !commands.over {
            commands.gather.push_back(collective);
            drop(commands);
            self.ordered.notify_one();
        }
    }

    /// Ends calls and begins no more. Other ranks are served until they leave too.
    pub fn leave(&self) {
        self.calls.end(&MpiEnd::Left);
        lock(&self.commands).leave = true;
        self.ordered.notify_one();
    }

    /// Takes the commands, and waits for some at most for `patience` if there are none.
    pub fn commands(&self, patience: Duration) -> MpiCommands {
        let mut commands = lock(&self.commands);
        if !patience.is_zero() {
            let none =
                |commands: &mut MpiCommands| commands.send.is_empty() && commands.gather.is_empty();
            let waited = self.ordered.wait_timeout_while(commands, patience, none);
            commands = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let leave = commands.leave;
        std::mem::replace(&mut commands, MpiCommands { leave, ..MpiCommands::default() })
    }

    /// Records that MPI is not called any more: ends all calls and serving.
    pub fn ended(&self, why: &MpiEnd) {
        self.calls.end(why);
        self.inbox.end();
        let over = MpiCommands { over: true, ..MpiCommands::default() };
        let rest = std::mem::replace(&mut *lock(&self.commands), over);
        drop(rest);
        *lock(&self.ended) = true;
        self.end.notify_all();
    }

    /// Waits for the end of the progress thread; returns false if it does not end within the limit.
    pub fn wait_for_end(&self, limit: Option<Duration>) -> bool {
        let ended = lock(&self.ended);
        // As good as for ever, without overflow.
        let limit = limit.unwrap_or(Duration::from_secs(u32::MAX.into()));
        let waited = self.end.wait_timeout_while(ended, limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
