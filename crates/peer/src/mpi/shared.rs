//! What the threads of a transport share.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use belady_data::sync::{Arc, Condvar, Mutex, lock};

use super::buffers::Buffers;
use super::calls::{Calls, End};
use super::comm::Outgoing;
use super::gathering::Gathering;
use super::serve::Inbox;
use crate::desk::Desk;

#[derive(Debug, Default)]
pub struct Shared {
    pub desk: Arc<Desk>,
    pub calls: Calls,
    pub inbox: Inbox,
    pub buffers: Arc<Buffers>,
    orders: Mutex<Orders>,
    ordered: Condvar,
    ended: Mutex<bool>,
    end: Condvar,
}

/// What the thread that talks to MPI is to do.
#[derive(Debug, Default)]
pub struct Orders {
    pub send: VecDeque<Outgoing>,
    pub gather: VecDeque<Gathering>,
    pub leave: bool,
    /// Nobody takes orders any more.
    over: bool,
}

impl Shared {
    pub fn send(&self, message: Outgoing) {
        let mut orders = lock(&self.orders);
        if !orders.over {
            orders.send.push_back(message);
            drop(orders);
            self.ordered.notify_one();
        }
    }

    /// Who waits for it hears of it if nobody takes orders any more, since it is dropped then.
    pub fn gather(&self, gathering: Gathering) {
        let mut orders = lock(&self.orders);
        if !orders.over {
            orders.gather.push_back(gathering);
            drop(orders);
            self.ordered.notify_one();
        }
    }

    /// Calls end, and no more are made. Others are served until they leave too.
    pub fn leave(&self) {
        self.calls.end(&End::Left);
        lock(&self.orders).leave = true;
        self.ordered.notify_one();
    }

    /// Takes the orders, and waits for some if there are none: at most so long.
    pub fn orders(&self, patience: Duration) -> Orders {
        let mut orders = lock(&self.orders);
        if !patience.is_zero() {
            let none = |orders: &mut Orders| orders.send.is_empty() && orders.gather.is_empty();
            let waited = self.ordered.wait_timeout_while(orders, patience, none);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let leave = orders.leave;
        std::mem::replace(&mut orders, Orders { leave, ..Orders::default() })
    }

    /// MPI is not called any more: nobody waits for it, and nothing is served.
    pub fn ended(&self, why: &End) {
        self.calls.end(why);
        self.inbox.end();
        let over = Orders { over: true, ..Orders::default() };
        let rest = std::mem::replace(&mut *lock(&self.orders), over);
        drop(rest);
        *lock(&self.ended) = true;
        self.end.notify_all();
    }

    /// Waits until this is so; false if it was not within the limit.
    pub fn wait_for_end(&self, limit: Option<Duration>) -> bool {
        let ended = lock(&self.ended);
        // As good as for ever, and no overflow.
        let limit = limit.unwrap_or(Duration::from_secs(u32::MAX.into()));
        let waited = self.end.wait_timeout_while(ended, limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
