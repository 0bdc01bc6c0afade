//! Which connections are accepted, and what refused ones are told.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belady_peer::auth::VERSION;
use belady_peer::tcp::{Address, TcpConfig, TcpTransport, Tls};
use belady_peer::{
    GetReply, GetRequest, Handler, JobKey, NodeId, Notice, PeerError, Push, PushOutcome, Transport,
};
use belady_testing::certificates::Authority;
use common::job::{CHANNEL, Job, LONG, get, get_some};
use common::{LOOPBACK, config, nodes, tls};

fn start(config: TcpConfig) -> Arc<TcpTransport> {
    TcpTransport::start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the error that rank 0 gets from rank 1.
fn refusal(zero: TcpConfig, one: TcpConfig) -> String {
    let (zero, one) = (start(zero), start(one));
    zero.set_address(1, one.address());
    let (job, _serving) = Job::open(&one);
    let error = get(&*zero, 1, 1, LONG).1.unwrap_err();
    one.close();
    let state = job.state.lock().unwrap();
    assert_eq!(state.came, 0, "no request was served");
    // A rank that reaches another rank of its own job is refused by that rank's number.
    let may_be_believed = error.to_string().contains("it says that it is rank 2");
    assert!(state.heard_of.is_empty() || may_be_believed);
    error.to_string()
}

#[test]
fn another_key_job_or_size_is_refused_in_a_sentence() {
    let (key, other) = (JobKey::random().unwrap(), JobKey::random().unwrap());
    for unix in [false, true] {
        let with = |config: TcpConfig| TcpConfig { unix, ..config };
        let told = refusal(with(config(0, 2, &key)), with(config(1, 2, &other)));
        assert_eq!(
            told,
            "rank 1 refuses: it has another job key: it belongs to another job, or not all ranks \
             were given the same key"
        );
        let told =
            refusal(with(config(0, 2, &key)), TcpConfig { job: 5, ..with(config(1, 2, &key)) });
        assert_eq!(
            told,
            "rank 1 refuses: it belongs to another job with the same key: give each job a key and \
             a port of its own"
        );
        let told = refusal(with(config(0, 2, &key)), with(config(1, 3, &key)));
        assert_eq!(
            told,
            "rank 1 refuses: it counts 3 ranks and this one 2: start all with the same number"
        );
        let told = refusal(with(config(0, 3, &key)), with(config(2, 3, &key)));
        assert!(told.starts_with("rank 1 refuses: it says that it is rank 2"), "{told}");
        let told = refusal(with(config(0, 2, &key)), with(config(0, 2, &key)));
        assert!(told.starts_with("rank 1 refuses: it says that it is rank 0"), "{told}");
    }
}

#[test]
fn another_version_or_program_is_refused_in_a_sentence() {
    let other =
        format!("rank 1 refuses: it uses protocol version 99 and this process version {VERSION}");
    let answers: [(&[u8], &str); 2] = [
        (b"belady\r\n\x63\x00", &other),
        (b"HTTP/1.1 400 Bad", "rank 1 refuses: it does not speak belady's protocol"),
    ];
    for (answer, expected) in answers {
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let node = start(config(0, 2, &JobKey::random().unwrap()));
        let address = Address { tcp: listener.local_addr().unwrap(), unix: None, ..node.address() };
        node.set_address(1, address);
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 42]).unwrap();
            stream.write_all(answer).unwrap();
            let _ = stream.read(&mut [0]);
        });
        let told = get(&*node, 1, 1, LONG).1.unwrap_err().to_string();
        assert!(told.starts_with(expected), "{told}");
        other.join().unwrap();
    }
}

#[test]
fn garbage_is_not_answered_and_does_no_harm() {
    let nodes = nodes(2, |config| TcpConfig { unix: false, ..config });
    let (_job, _serving) = Job::open(&nodes[1]);
    let garbage: [&[u8]; 5] =
        [b"", b"GET / HTTP/1.1\r\n\r\n", &[0; 5000], &[255; 5000], b"\x16\x03\x01\x02\x00\x01"];
    for garbage in garbage {
        let mut stream = TcpStream::connect(nodes[1].address().tcp).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    // The first bytes without the key get the first bytes, and no more.
    let mut stream = TcpStream::connect(nodes[1].address().tcp).unwrap();
    let first = [&b"belady\r\n"[..], &VERSION.to_le_bytes(), &[7; 32]].concat();
    stream.write_all(&[&first[..], &[0, 0], &[9; 32]].concat()).unwrap();
    let mut answer = vec![];
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!((answer.len(), answer.last()), (43, Some(&0)));
    get_some(&*nodes[0], 1);
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let nodes = nodes(2, |config| TcpConfig { unix: false, ..config });
    let (_job, _serving) = Job::open(&nodes[1]);
    let visit = |_| TcpStream::connect(nodes[1].address().tcp).unwrap();
    let _silent: Vec<_> = (0..150).map(visit).collect();
    get_some(&*nodes[0], 1);
}

#[test]
fn the_connections_of_a_peer_are_limited() {
    let nodes = nodes(2, |config| TcpConfig { connections: 40, ..config });
    let (job, _serving) = Job::open(&nodes[1]);
    job.set_shut(true);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..16).map(|_| scope.spawn(|| get_some(&*nodes[0], 1))).collect();
        job.wait_for(16);
        let told = get(&*nodes[0], 1, 1, LONG).1.unwrap_err().to_string();
        assert_eq!(told, "rank 1 refuses: it already serves too many connections of this rank");
        job.set_shut(false);
        for call in calls {
            call.join().unwrap();
        }
    });
    get_some(&*nodes[0], 1);
}

#[test]
fn a_handler_that_panics_ends_its_connection_and_frees_its_slot() {
    struct Panics;
    impl Handler for Panics {
        fn get(&self, _: NodeId, _: &GetRequest<'_>, _: usize, _: &mut Vec<GetReply>) {
            panic!("as the test wants");
        }
        fn put(&self, _: NodeId, _: &[Push<'_>], _: &mut Vec<PushOutcome>) {}
        fn told(&self, _: NodeId, _: &Notice) {}
    }
    let nodes = nodes(2, |config| config);
    let job: Arc<dyn Handler> = Arc::new(Panics);
    let serving = nodes[1].dispatcher().register(CHANNEL, Arc::downgrade(&job));
    for _ in 0..20 {
        let error = get(&*nodes[0], 1, 1, LONG).1.unwrap_err();
        assert!(matches!(error, PeerError::Closed { peer: 1, .. }), "{error}");
    }
    drop(serving);
    let (_job, _serving) = Job::open(&nodes[1]);
    get_some(&*nodes[0], 1);
}

#[test]
fn on_one_machine_the_unix_socket_is_used_and_tcp_if_there_is_none() {
    let nodes = nodes(2, |config| config);
    let (_job, _serving) = Job::open(&nodes[1]);
    let address = nodes[1].address();
    let path = address.unix.clone().unwrap();
    assert!(nodes[0].is_near(1) && path.exists());
    let node = start(config(0, 2, &JobKey::random().unwrap()));
    assert!(!node.is_near(1), "its address is not known");

    let nowhere = (LOOPBACK, 1).into();
    let newer = |by, address: Address| Address { incarnation: address.incarnation + by, ..address };
    nodes[0].set_address(1, newer(1, Address { tcp: nowhere, ..address.clone() }));
    get_some(&*nodes[0], 1);
    let unix = Some(path.with_file_name("gone"));
    nodes[0].set_address(1, newer(2, Address { unix: unix.clone(), ..address.clone() }));
    get_some(&*nodes[0], 1);
    nodes[0].set_address(1, newer(3, Address { tcp: nowhere, unix, ..address }));
    let error = get(&*nodes[0], 1, 1, LONG).1.unwrap_err();
    assert!(matches!(error, PeerError::Unreachable { peer: 1, .. }), "{error}");
    nodes[1].close();
    assert!(!path.exists());
}

#[test]
fn tls_is_used_by_all_or_none_and_only_with_certificates_that_all_trust() {
    let key = JobKey::random().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let with = |rank, tls: Option<Tls>| TcpConfig { unix: false, tls, ..config(rank, 2, &key) };
    let hint = "check its log, and that all ranks use TLS or none does";
    let told = refusal(with(0, None), with(1, Some(tls(&ours, "one"))));
    assert!(told.ends_with(hint), "{told}");
    let told = refusal(with(0, Some(tls(&ours, "zero"))), with(1, None));
    assert!(told.ends_with(hint), "{told}");
    let told = refusal(with(0, Some(tls(&ours, "zero"))), with(1, Some(tls(&theirs, "one"))));
    assert!(told.contains("invalid peer certificate"), "{told}");
    let half = Tls { authority: tls(&ours, "x").authority, ..tls(&theirs, "one") };
    let told = refusal(with(0, Some(half)), with(1, Some(tls(&ours, "one"))));
    assert!(told.contains("before it proved that it has the key"), "{told}");
    let other = Tls { name: Some("elsewhere.example".into()), ..tls(&ours, "zero") };
    let told = refusal(with(0, Some(other)), with(1, Some(tls(&ours, "one"))));
    assert!(told.contains("not valid for name"), "{told}");
}

#[test]
fn a_wrong_configuration_fails_before_anything_listens() {
    let key = JobKey::random().unwrap();
    let told = |config| TcpTransport::start(config).map(drop).unwrap_err().to_string();
    let every = TcpConfig { listen: "0.0.0.0".parse().unwrap(), ..config(0, 1, &key) };
    assert!(told(every).starts_with("0.0.0.0 is every interface"));
    let elsewhere = TcpConfig { listen: "192.0.2.1".parse().unwrap(), ..config(0, 1, &key) };
    assert!(told(elsewhere).starts_with("cannot listen at 192.0.2.1:0"));
    let node = start(config(0, 1, &key));
    let taken = TcpConfig { port: node.address().tcp.port(), ..config(0, 1, &key) };
    assert!(told(taken).contains("a port that is free"));
    let authority = Authority::new();
    let tls = tls(&authority, "node");
    let missing = Tls { key: "/nowhere/key.pem".into(), ..tls.clone() };
    let no_key = told(TcpConfig { tls: Some(missing), ..config(0, 1, &key) });
    assert!(
        no_key.starts_with("the TLS private key in /nowhere/key.pem cannot be used"),
        "{no_key}"
    );
    let empty = Tls { authority: tls.key.clone(), ..tls };
    let no_authority = told(TcpConfig { tls: Some(empty), ..config(0, 1, &key) });
    assert!(no_authority.ends_with("cannot be used: it contains none"), "{no_authority}");
}

#[test]
fn a_call_to_a_rank_without_an_address_says_so() {
    let node = start(config(0, 2, &JobKey::random().unwrap()));
    let tell = |peer| {
        let soon = Instant::now() + Duration::from_secs(1);
        node.tell(peer, CHANNEL, &Notice::EpochDone { epoch: 0 }, soon).unwrap_err().to_string()
    };
    assert!(tell(1).starts_with("rank 1 cannot be reached at an address that is not known yet"));
    assert!(tell(2).starts_with("rank 2 cannot be reached at any address"));
}
