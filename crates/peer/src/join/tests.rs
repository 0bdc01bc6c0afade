use std::time::{Duration, Instant};

use super::*;
use crate::dispatcher::{Handler, Registration};
use crate::message::{
    Answer, Ask, Channel, GetReply, GetRequest, Notice, Payload, Push, PushOutcome, Receive,
};
use crate::rendezvous::{InProcessRendezvous, JobWorld, RendezvousAddress, free, tcp};

const LONG: Duration = Duration::from_mins(1);

/// A handler that serves its rank.
#[derive(Debug)]
struct Sample(u8);

impl Handler for Sample {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, _: usize, replies: &mut Vec<GetReply>) {
        let bytes = || Payload::Copied((&[self.0][..]).into());
        replies.extend(request.asks.iter().map(|_| GetReply::Here {
            bytes: bytes(),
            digest: 0,
            version: 0,
        }));
    }

    fn put(&self, _: NodeId, _: &[Push<'_>], _: &mut Vec<PushOutcome>) {}

    fn told(&self, _: NodeId, _: &Notice) {}
}

struct Node {
    cluster: Cluster,
    _handler: Arc<dyn Handler>,
    _serving: Registration,
}

impl Node {
    fn open(cluster: Cluster) -> Self {
        let handler: Arc<dyn Handler> = Arc::new(Sample(cluster.world().rank as u8));
        let serving = cluster.transport.dispatcher().register(Channel(0), Arc::downgrade(&handler));
        Self { cluster, _handler: handler, _serving: serving }
    }

    fn ask(&self, peer: NodeId) -> Result<u8, PeerError> {
        struct One([u8; 1]);
        impl Receive for One {
            fn slot(&mut self, _: usize) -> &mut [u8] {
                &mut self.0
            }
            fn answered(&mut self, _: usize, _: Answer) {}
        }
        let mut one = One([99]);
        let asks = [Ask { sample: 0, last_use: false }];
        let request = GetRequest { channel: Channel(0), epoch: 0, asks: &asks };
        self.cluster.transport.get(peer, &request, Instant::now() + LONG, &mut one)?;
        Ok(one.0[0])
    }
}

fn on_all<T: Send>(size: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn at(place: &RendezvousAddress, rank: u32, size: u32, key: &JobKey) -> Arc<dyn Rendezvous> {
    let (world, job) = (JobWorld { rank, size }, "test".to_owned());
    let options = tcp::TcpRendezvousOptions { world, job, key: key.clone(), limit: LONG };
    tcp::start(place, options).unwrap()
}

#[test]
fn ranks_reach_each_other_on_the_interface_of_the_rendezvous() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let nodes = on_all(4, |rank| {
        Node::open(join(at(&place, rank, 4, &key), JoinOptions::default()).unwrap())
    });
    for node in &nodes {
        for peer in (0..4).filter(|peer| *peer != node.cluster.world().rank) {
            assert_eq!(u32::from(node.ask(peer).unwrap()), peer);
        }
    }
    let addresses = tcp::ask(&place, &key, ADDRESSES, LONG).unwrap();
    for address in addresses {
        let address = Address::from_bytes(&address.unwrap()).unwrap();
        assert!(address.tcp.ip().is_loopback(), "no other interface is open");
    }
}

#[test]
fn rank_0_draws_the_key_of_a_private_rendezvous() {
    let rendezvous = InProcessRendezvous::new(3, LONG);
    let bind = Some(Bind::Interface("lo".to_owned()));
    let nodes = on_all(3, |rank| {
        let options = JoinOptions { bind: bind.clone(), unix: false, ..JoinOptions::default() };
        Node::open(join(rendezvous.member(rank), options).unwrap())
    });
    assert_eq!((nodes[2].ask(0).unwrap(), nodes[0].ask(1).unwrap()), (0, 1));
}

#[test]
fn a_restarted_rank_is_found_at_its_new_address() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let options = JoinOptions { unix: false, ..JoinOptions::default() };
    let start = |rank| Node::open(join(at(&place, rank, 3, &key), options.clone()).unwrap());
    let mut nodes = on_all(3, start);
    drop(nodes.pop());
    assert!(nodes[1].ask(2).is_err());
    let back = start(2);
    assert_eq!(back.ask(1).unwrap(), 1);
    // Rank 0 has not heard from it, so this is from the rendezvous server.
    while nodes[0].ask(2).is_err() {
        std::thread::yield_now();
    }
    // Rank 0 with its server ends and comes back as well.
    drop(nodes.remove(0));
    let again = start(0);
    assert_eq!((again.ask(1).unwrap(), again.ask(2).unwrap()), (1, 2));
    while nodes[0].ask(0).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn different_keys_are_reported_at_the_rendezvous() {
    let rendezvous = InProcessRendezvous::new(3, LONG);
    let (right, wrong) = (JobKey::random().unwrap(), JobKey::random().unwrap());
    let errors = on_all(3, |rank| {
        let key = Some(if rank == 1 { wrong.clone() } else { right.clone() });
        join(rendezvous.member(rank), JoinOptions { key, ..JoinOptions::default() })
            .unwrap_err()
            .to_string()
    });
    let sentence = format!(
        "the ranks disagree: rank 1 has a key marked {}, all others {}",
        mark(&wrong),
        mark(&right)
    );
    assert_eq!(errors, [&sentence[..]; 3]);
    assert!(!wrong.to_text().contains(&mark(&wrong)));
}

#[test]
fn the_error_names_an_unknown_interface() {
    let rendezvous = InProcessRendezvous::new(1, LONG);
    let bind = Some(Bind::Interface("nonesuch0".to_owned()));
    let error =
        join(rendezvous.member(0), JoinOptions { bind, ..JoinOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("no interface `nonesuch0`"), "{error}");
    let bind = Some(Bind::Address("192.0.2.1".parse().unwrap()));
    let error = join(
        InProcessRendezvous::new(1, LONG).member(0),
        JoinOptions { bind, ..JoinOptions::default() },
    );
    assert!(error.unwrap_err().to_string().contains("192.0.2.1"));
}
