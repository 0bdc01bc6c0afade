use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use super::frames::{Frames, own};
use super::*;
use crate::auth::{Role, prove};
use crate::rendezvous::free;

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_mins(1);
/// Long enough to notice that a rank is missing.
const SHORT: Duration = Duration::from_secs(1);

fn options(rank: u32, size: u32, key: &JobKey) -> TcpRendezvousOptions {
    let (world, job) = (JobWorld { rank, size }, "test".to_owned());
    TcpRendezvousOptions { world, job, key: key.clone(), limit: LONG }
}

fn together<T: Send>(count: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn address(place: &RendezvousAddress) -> SocketAddr {
    resolve(place).unwrap()[0]
}

#[test]
fn all_ranks_get_all_values_in_any_order_of_arrival() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let all = together(5, |rank| {
        let rendezvous = start(&place, options(rank, 5, &key)).unwrap();
        let names = rendezvous.exchange("names", &[rank as u8; 3]).unwrap();
        let from_0 = rendezvous.broadcast("from 0", &[9 - rank as u8]).unwrap();
        let empty = rendezvous.exchange("empty", &[]).unwrap();
        assert_eq!(rendezvous.interface().unwrap().to_string(), "127.0.0.1");
        assert!(rendezvous.key().unwrap() == key);
        // A rank that ends first must not take it from the others.
        (names, from_0, empty)
    });
    let names: Vec<Vec<u8>> = (0..5).map(|rank| vec![rank; 3]).collect();
    assert!(all.iter().all(|got| *got == (names.clone(), vec![9], vec![vec![]; 5])));
}

#[test]
fn a_restarted_rank_gets_all_values_and_watchers_are_told() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let come = |rank| start(&place, options(rank, 3, &key)).unwrap();
    let ranks: Vec<_> = (0..3).map(come).collect();
    together(3, |rank| ranks[rank as usize].exchange("address", &[rank as u8]).unwrap());
    let (told, hears) = mpsc::channel();
    for (rank, rendezvous) in [(0u8, &ranks[0]), (1, &ranks[1])] {
        let told = told.clone();
        let watcher = move |who, value: &[u8]| told.send((rank, who, value.to_vec())).unwrap();
        rendezvous.watch("address", Arc::new(watcher));
    }
    let until = |wanted: &[(u8, u32, Vec<u8>)]| {
        let mut heard = vec![];
        while !wanted.iter().all(|it| heard.contains(it)) {
            heard.push(hears.recv_timeout(LONG).unwrap());
        }
    };
    // A watcher is first called with the current values, at least once; except on rank 0, which
    // knows them.
    until(&[(1, 0, vec![0]), (1, 2, vec![2])]);
    let mut ranks = ranks.into_iter();
    let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
    drop(ranks);
    let again = come(2);
    assert_eq!(again.exchange("address", &[7]).unwrap(), [[0], [1], [7]]);
    until(&[(0, 2, vec![7]), (1, 2, vec![7])]);
    assert_eq!(
        ask(&place, &key, "address", LONG).unwrap(),
        [Some(vec![0]), Some(vec![1]), Some(vec![7])]
    );
    drop((first, second));
}

#[test]
fn clients_reconnect_to_a_restarted_server() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let come = |rank| start(&place, options(rank, 3, &key)).unwrap();
    let mut ranks: Vec<_> = (0..3).map(come).collect();
    together(3, |rank| ranks[rank as usize].exchange("address", &[rank as u8]).unwrap());
    let (told, hears) = mpsc::channel();
    let watcher = move |who, value: &[u8]| told.send((who, value.to_vec())).unwrap();
    ranks[1].watch("address", Arc::new(watcher));
    for _ in 0..2 {
        hears.recv_timeout(LONG).unwrap();
    }
    drop(ranks.remove(0));
    let again = come(0);
    // The others do nothing, and the exchange is complete all the same.
    assert_eq!(again.exchange("address", &[8]).unwrap(), [[8], [1], [2]]);
    while hears.recv_timeout(LONG).unwrap() != (0, vec![8]) {}
    ranks.insert(0, again);
    let next = together(3, |rank| ranks[rank as usize].exchange("next", &[rank as u8]).unwrap());
    assert_eq!(next, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn an_exchange_in_progress_survives_the_loss_of_rank_0() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let come = |rank| start(&place, options(rank, 2, &key)).unwrap();
    let (first, other) = (come(0), come(1));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.exchange("late", &[1]).unwrap());
        while ask(&place, &key, "late", LONG).unwrap()[1].is_none() {
            std::thread::yield_now();
        }
        drop(first);
        let again = come(0);
        assert_eq!(again.exchange("late", &[5]).unwrap(), [[5], [1]]);
        assert_eq!(waits.join().unwrap(), [[5], [1]]);
    });
}

#[test]
fn all_ranks_learn_which_ranks_are_missing() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let server =
        start(&place, TcpRendezvousOptions { limit: SHORT, ..options(0, 4, &key) }).unwrap();
    let client = start(&place, options(1, 4, &key)).unwrap();
    let error = std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.exchange("addresses", &[]).unwrap_err().to_string());
        while ask(&place, &key, "addresses", LONG).unwrap()[1].is_none() {
            std::thread::yield_now();
        }
        let error = server.exchange("addresses", &[]).unwrap_err().to_string();
        drop(server);
        // It could wait for long, but the others are missing.
        assert!(waits.join().unwrap().starts_with("ranks 2, 3 of 4 did not come to 127."));
        error
    });
    assert!(error.starts_with("ranks 2, 3 of 4 did not come to 127.0.0.1:"), "{error}");
    drop(client);
    let server = start(&place, options(0, 3, &key)).unwrap();
    let hasty =
        start(&place, TcpRendezvousOptions { limit: SHORT, ..options(1, 3, &key) }).unwrap();
    let error = hasty.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(error.contains("of 3 did not come to 127.0.0.1:"), "{error}");
    drop((server, hasty));
    let alone =
        start(&place, TcpRendezvousOptions { limit: SHORT, ..options(1, 2, &key) }).unwrap();
    let alone = alone.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(alone.starts_with("rank 0 of 2 did not come to 127.0.0.1:"), "{alone}");
    assert!(alone.contains("refused"), "{alone}");
}

/// Any address of the machine may be the one that the others use.
#[test]
fn a_host_name_that_resolves_to_the_loopback_only_on_its_own_machine_listens_everywhere() {
    let port = |place: &RendezvousAddress| address(place).port();
    let here = RendezvousAddress::Server { host: "127.0.0.1".into(), port: port(&free()) };
    // The machine's own name is not known here, so the address is built by hand.
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(&here)));
    let key = JobKey::random().unwrap();
    let server =
        RendezvousServer::listen(&[everywhere], "node01", key.clone(), options(0, 3, &key).into())
            .unwrap();
    let at = |host: &str| RendezvousAddress::Server { host: host.into(), port: port(&here) };
    let places = [at("127.0.0.1"), at("127.0.1.1")];
    let clients =
        [1, 2].map(|rank| start(&places[rank as usize - 1], options(rank, 3, &key)).unwrap());
    let all = together(3, |rank| match rank {
        0 => server.exchange("a", &[0]).unwrap(),
        _ => clients[rank as usize - 1].exchange("a", &[rank as u8]).unwrap(),
    });
    assert_eq!(all, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn a_wrong_key_is_told_to_both_sides() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let server =
        start(&place, TcpRendezvousOptions { limit: SHORT * 4, ..options(0, 2, &key) }).unwrap();
    let stranger = start(&place, options(1, 2, &JobKey::random().unwrap())).unwrap();
    let error = stranger.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(error.contains("it has another job key") && error.contains("127.0.0.1:"), "{error}");
    let error = server.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("rank 1 of 2 did not come") && error.contains("another job key"),
        "{error}"
    );
    assert!(!format!("{server:?}{stranger:?}{:?}", options(0, 2, &key)).contains(&key.to_text()));
    assert!(
        ask(&place, &JobKey::random().unwrap(), "x", LONG)
            .unwrap_err()
            .to_string()
            .contains("job key")
    );
}

#[test]
fn two_jobs_on_one_port_are_refused() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let _server = start(&place, options(0, 2, &key)).unwrap();
    let other = TcpRendezvousOptions { job: "other".into(), ..options(1, 2, &key) };
    let error = start(&place, other.clone()).unwrap().exchange("a", &[]).unwrap_err().to_string();
    assert!(error.contains("job `test` meets at 127.0.0.1:"), "{error}");
    assert!(error.contains("belongs to job `other`: give one of them another port"), "{error}");
    let error =
        start(&place, TcpRendezvousOptions { world: JobWorld { rank: 0, size: 2 }, ..other })
            .unwrap_err();
    assert!(error.to_string().contains("another program listens at 127.0.0.1:"), "{error}");
}

#[test]
fn the_second_process_with_a_rank_is_refused() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let ranks: Vec<_> = (0..2).map(|rank| start(&place, options(rank, 2, &key)).unwrap()).collect();
    together(2, |rank| ranks[rank as usize].exchange("a", &[rank as u8]).unwrap());
    let second =
        start(&place, TcpRendezvousOptions { limit: SHORT, ..options(1, 2, &key) }).unwrap();
    let error = second.exchange("a", &[9]).unwrap_err().to_string();
    assert!(
        error.contains("rank 1 is connected to 127.0.0.1:") && error.contains("same rank"),
        "{error}"
    );
    assert_eq!(ask(&place, &key, "a", LONG).unwrap(), [Some(vec![0]), Some(vec![1])]);
}

#[test]
fn another_number_of_ranks_is_refused() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let _server = start(&place, options(0, 4, &key)).unwrap();
    let error = start(&place, options(1, 8, &key)).unwrap().exchange("a", &[]).unwrap_err();
    assert!(
        error.to_string().contains("rank 1 counts 8 ranks and rank 0 at 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn the_error_names_a_host_that_cannot_be_found() {
    let place: RendezvousAddress = "nowhere.invalid:29700".parse().unwrap();
    let key = JobKey::random().unwrap();
    let server = start(&place, TcpRendezvousOptions { limit: SHORT, ..options(0, 2, &key) });
    let error = server.unwrap_err().to_string();
    assert!(
        error.contains("the host `nowhere.invalid` of the rendezvous cannot be found"),
        "{error}"
    );
    let client =
        start(&place, TcpRendezvousOptions { limit: SHORT, ..options(1, 2, &key) }).unwrap();
    let error = client.exchange("a", &[]).unwrap_err().to_string();
    assert!(
        error.contains("the host `nowhere.invalid` of the rendezvous cannot be found"),
        "{error}"
    );
}

#[test]
fn rank_0_is_found_behind_an_address_that_its_machine_does_not_have() {
    let (near, key) = (free(), JobKey::random().unwrap());
    // Reserved for documentation: no machine has it, and nothing leads from there to here.
    let place = RendezvousAddress::Server { host: "192.0.2.1".into(), port: address(&near).port() };
    let server = start(&place, options(0, 2, &key)).unwrap();
    let client = start(&near, options(1, 2, &key)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| client.exchange("a", &[1]).unwrap());
        assert_eq!(server.exchange("a", &[0]).unwrap(), [[0], [1]]);
    });
}

#[test]
fn garbage_on_the_port_is_refused_and_does_no_harm() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let server = start(&place, options(0, 2, &key)).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 4096], b"belady\r\n\x09\x00"]
    {
        let mut stream = TcpStream::connect(address(&place)).unwrap();
        stream.write_all(garbage).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = vec![];
        // Closed, or reset since it did not read all of it.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 64, "no more than first words");
    }
    let silent = TcpStream::connect(address(&place)).unwrap();
    let client = start(&place, options(1, 2, &key)).unwrap();
    let all = together(2, |rank| [&server, &client][rank as usize].exchange("a", &[1]).unwrap());
    assert_eq!(all, vec![vec![vec![1], vec![1]]; 2]);
    drop(silent);
}

#[test]
fn another_program_at_the_address_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 and so on and so forth\r\n").unwrap();
        let _ = stream.read_to_end(&mut vec![]);
    });
    let place = RendezvousAddress::Server { host: "127.0.0.1".into(), port };
    let client = start(&place, options(1, 2, &JobKey::random().unwrap())).unwrap();
    let error = client.exchange("a", &[]).unwrap_err().to_string();
    assert!(error.contains("another program is at the other end"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_value_that_is_too_long_is_not_sent() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let server = start(&place, options(0, 1, &key)).unwrap();
    let longest = vec![7; LONGEST_VALUE];
    assert_eq!(server.exchange("a", &longest).unwrap(), std::slice::from_ref(&longest));
    assert!(server.exchange("a", &[&longest[..], &[0]].concat()).is_err());
    assert!(server.exchange(&"n".repeat(LONGEST_NAME + 1), &[]).is_err());
    let long = TcpRendezvousOptions { job: "j".repeat(LONGEST_JOB + 1), ..options(0, 1, &key) };
    assert!(start(&free(), long).is_err());
}

/// What counts as silence where that is tested.
const SILENT: Duration = Duration::from_secs(2);

/// Writes over longer than `SILENT`, with pauses that are far shorter.
fn drip(mut stream: &TcpStream, bytes: &[u8]) {
    for piece in bytes.chunks(bytes.len().div_ceil(40)) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(SILENT / 25);
    }
}

/// With little patience for silence.
fn impatient(rank: u32) -> RendezvousJob {
    RendezvousJob {
        silence: SILENT,
        ..RendezvousJob::new(JobWorld { rank, size: 2 }, "test".to_owned(), LONG)
    }
}

#[test]
fn a_server_whose_message_arrives_slowly_is_not_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (place, key) =
        (RendezvousAddress::Server { host: "127.0.0.1".into(), port }, JobKey::random().unwrap());
    let server = std::thread::spawn({
        let key = key.clone();
        move || {
            let (mut stream, _) = listener.accept().unwrap();
            let who = ClientKind::Rank { rank: 0, life: 1 };
            let hello = RendezvousHello { job: "test".to_owned(), size: 2, who };
            prove(&mut stream, &key, Role::Listens, &hello.to_bytes()).unwrap();
            stream.write_all(&RendezvousMessage::Welcome.to_frame()).unwrap();
            let mut frames = Frames::new(own(stream.try_clone().unwrap()).unwrap(), usize::MAX);
            let Some(RendezvousMessage::Give { name, value, .. }) = frames.next(LONG).unwrap()
            else {
                panic!("it gives something")
            };
            let values = vec![Some(vec![3; 9999]), Some(value)];
            drip(&stream, &RendezvousMessage::Values { name, values }.to_frame());
            // A client that reconnects finds no server.
        }
    });
    let to = (place.clone(), key);
    let locate = Box::new(move || Ok(to.clone()));
    let locator = ServerLocator { locate, may_change: false, name: place.to_string() };
    let client =
        RendezvousClient::start(locator, RendezvousJob { limit: 10 * SILENT, ..impatient(1) })
            .unwrap();
    let all = client.exchange("address", &[1]).unwrap();
    assert_eq!(all, [vec![3; 9999], vec![1]]);
    server.join().unwrap();
}

#[test]
fn a_client_whose_message_arrives_slowly_is_not_silent() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let name = place.to_string();
    let server =
        RendezvousServer::listen(&[address(&place)], &name, key.clone(), impatient(0)).unwrap();
    let who = ClientKind::Rank { rank: 1, life: 1 };
    let mut frames =
        connect_to(&place, &key, &RendezvousHello { job: "test".to_owned(), size: 2, who })
            .unwrap();
    let give =
        RendezvousMessage::Give { name: "address".to_owned(), waits: true, value: vec![7; 9999] };
    drip(frames.stream(), &give.to_frame());
    assert_eq!(server.exchange("address", &[1]).unwrap(), [vec![1], vec![7; 9999]]);
    assert!(matches!(frames.next(LONG).unwrap(), Some(RendezvousMessage::Values { .. })));
}

#[test]
fn the_length_of_a_message_above_4_gib_is_not_truncated() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut frames = Frames::new(own(listener.accept().unwrap().0).unwrap(), usize::MAX);
    // Its lowest 32 bits are the length of a message.
    let here = RendezvousMessage::Here.to_frame();
    let length = (1u64 << 32) + (here.len() - messages::LENGTH) as u64;
    writer.write_all(&length.to_le_bytes()).unwrap();
    writer.write_all(&here[messages::LENGTH..]).unwrap();
    assert_eq!(frames.next(SHORT).unwrap(), None);
}

/// Waits until a server has forgotten an exchange.
fn await_forgotten(place: &RendezvousAddress, key: &JobKey, name: &str) {
    while ask(place, key, name, LONG).unwrap().iter().any(Option::is_some) {
        std::thread::yield_now();
    }
}

#[test]
fn an_exchange_that_all_ranks_have_released_is_not_kept() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let come = |rank| start(&place, options(rank, 3, &key)).unwrap();
    let mut ranks: Vec<_> = (0..3).map(come).collect();
    for name in ["address", "loader 0", "loader 1"] {
        together(3, |rank| ranks[rank as usize].exchange(name, &[rank as u8]).unwrap());
    }
    for rendezvous in &ranks {
        rendezvous.release("loader 0");
    }
    for rendezvous in &ranks[..2] {
        rendezvous.release("loader 1");
    }
    await_forgotten(&place, &key, "loader 0");
    // A restarted rank is told so, and gets the exchanges that are still in use.
    ranks.pop();
    let again = come(2);
    assert_eq!(again.exchange("address", &[7]).unwrap(), [[0], [1], [7]]);
    let error = again.exchange("loader 0", &[7]).unwrap_err();
    assert_eq!(error, RendezvousError::Over("loader 0".to_owned()));
    assert_eq!(again.exchange("loader 1", &[7]).unwrap(), [[0], [1], [7]]);
    again.release("loader 1");
    await_forgotten(&place, &key, "loader 1");
    // So is rank 0, by the ranks that have run all the time.
    drop(ranks.remove(0));
    let first = come(0);
    assert_eq!(first.exchange("address", &[8]).unwrap(), [[8], [1], [7]]);
    for name in ["loader 0", "loader 1"] {
        assert_eq!(first.exchange(name, &[8]).unwrap_err(), RendezvousError::Over(name.to_owned()));
    }
    let others = [&ranks[0], &again];
    let next = together(3, |rank| match rank {
        0 => first.exchange("loader 2", &[0]).unwrap(),
        rank => others[rank as usize - 1].exchange("loader 2", &[rank as u8]).unwrap(),
    });
    assert_eq!(next, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn a_thousand_exchanges_leave_nothing_but_traces() {
    let (place, key) = (free(), JobKey::random().unwrap());
    let ranks: Vec<_> = (0..2).map(|rank| start(&place, options(rank, 2, &key)).unwrap()).collect();
    for number in 0..1000 {
        let name = format!("loader {number}");
        together(2, |rank| {
            let rendezvous = &ranks[rank as usize];
            rendezvous.exchange(&name, &[0; 1000]).unwrap();
            rendezvous.release(&name);
        });
    }
    await_forgotten(&place, &key, "loader 999");
    let left = (0..1000).filter(|number| {
        let given = ask(&place, &key, &format!("loader {number}"), LONG).unwrap();
        given.iter().any(Option::is_some)
    });
    assert_eq!(left.count(), 0);
}
