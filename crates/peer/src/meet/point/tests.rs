use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use super::frames::{Frames, own};
use super::*;
use crate::auth::{Role, prove};
use crate::meet::free;

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_mins(1);
/// Long enough to see that somebody does not come.
const SHORT: Duration = Duration::from_millis(300);

fn options(rank: u32, size: u32, key: &Key) -> Options {
    let (world, job) = (World { rank, size }, "test".to_owned());
    Options { world, job, key: key.clone(), limit: LONG }
}

fn together<T: Send>(count: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn address(place: &Place) -> SocketAddr {
    resolve(place).unwrap()[0]
}

#[test]
fn all_get_what_all_gave_in_any_order_of_coming() {
    let (place, key) = (free(), Key::random().unwrap());
    let all = together(5, |rank| {
        let meet = meet(&place, options(rank, 5, &key)).unwrap();
        let names = meet.exchange("names", &[rank as u8; 3]).unwrap();
        let from_0 = meet.broadcast("from 0", &[9 - rank as u8]).unwrap();
        let empty = meet.exchange("empty", &[]).unwrap();
        assert_eq!(meet.interface().unwrap().to_string(), "127.0.0.1");
        assert!(meet.key().unwrap() == key);
        // Who ends first must not take it from the others.
        (names, from_0, empty)
    });
    let names: Vec<Vec<u8>> = (0..5).map(|rank| vec![rank; 3]).collect();
    assert!(all.iter().all(|got| *got == (names.clone(), vec![9], vec![vec![]; 5])));
}

#[test]
fn a_rank_that_was_started_again_gets_what_was_given_and_those_who_watch_are_told() {
    let (place, key) = (free(), Key::random().unwrap());
    let come = |rank| meet(&place, options(rank, 3, &key)).unwrap();
    let meets: Vec<_> = (0..3).map(come).collect();
    together(3, |rank| meets[rank as usize].exchange("address", &[rank as u8]).unwrap());
    let (told, hears) = mpsc::channel();
    for (rank, meet) in [(0u8, &meets[0]), (1, &meets[1])] {
        let told = told.clone();
        let watcher = move |who, value: &[u8]| told.send((rank, who, value.to_vec())).unwrap();
        meet.watch("address", Arc::new(watcher));
    }
    let until = |wanted: &[(u8, u32, Vec<u8>)]| {
        let mut heard = vec![];
        while !wanted.iter().all(|it| heard.contains(it)) {
            heard.push(hears.recv_timeout(LONG).unwrap());
        }
    };
    // Whoever watches is first told how things are, at least once; except rank 0, who knows.
    until(&[(1, 0, vec![0]), (1, 2, vec![2])]);
    let mut meets = meets.into_iter();
    let (first, second) = (meets.next().unwrap(), meets.next().unwrap());
    drop(meets);
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
fn when_rank_0_was_started_again_the_others_come_again_by_themselves() {
    let (place, key) = (free(), Key::random().unwrap());
    let come = |rank| meet(&place, options(rank, 3, &key)).unwrap();
    let mut meets: Vec<_> = (0..3).map(come).collect();
    together(3, |rank| meets[rank as usize].exchange("address", &[rank as u8]).unwrap());
    let (told, hears) = mpsc::channel();
    let watcher = move |who, value: &[u8]| told.send((who, value.to_vec())).unwrap();
    meets[1].watch("address", Arc::new(watcher));
    for _ in 0..2 {
        hears.recv_timeout(LONG).unwrap();
    }
    drop(meets.remove(0));
    let again = come(0);
    // The others do nothing, and it is whole all the same.
    assert_eq!(again.exchange("address", &[8]).unwrap(), [[8], [1], [2]]);
    while hears.recv_timeout(LONG).unwrap() != (0, vec![8]) {}
    meets.insert(0, again);
    let next = together(3, |rank| meets[rank as usize].exchange("next", &[rank as u8]).unwrap());
    assert_eq!(next, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn an_exchange_under_way_survives_the_loss_of_rank_0() {
    let (place, key) = (free(), Key::random().unwrap());
    let come = |rank| meet(&place, options(rank, 2, &key)).unwrap();
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
fn a_world_that_never_fills_names_the_missing_ranks_to_all() {
    let (place, key) = (free(), Key::random().unwrap());
    let host = meet(&place, Options { limit: SHORT, ..options(0, 4, &key) }).unwrap();
    let guest = meet(&place, options(1, 4, &key)).unwrap();
    let error = std::thread::scope(|scope| {
        let waits = scope.spawn(|| guest.exchange("addresses", &[]).unwrap_err().to_string());
        while ask(&place, &key, "addresses", LONG).unwrap()[1].is_none() {
            std::thread::yield_now();
        }
        let error = host.exchange("addresses", &[]).unwrap_err().to_string();
        drop(host);
        // It could wait for long, but the others will not come.
        assert!(waits.join().unwrap().starts_with("ranks 2, 3 of 4 did not come to addresses at"));
        error
    });
    assert!(
        error.starts_with("ranks 2, 3 of 4 did not come to addresses at 127.0.0.1:"),
        "{error}"
    );
    drop(guest);
    let host = meet(&place, options(0, 3, &key)).unwrap();
    let hasty = meet(&place, Options { limit: SHORT, ..options(1, 3, &key) }).unwrap();
    let error = hasty.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(error.contains("of 3 did not come to addresses at 127.0.0.1:"), "{error}");
    drop((host, hasty));
    let alone = meet(&place, Options { limit: SHORT, ..options(1, 2, &key) }).unwrap();
    let alone = alone.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(alone.starts_with("rank 0 of 2 did not come to addresses at 127.0.0.1:"), "{alone}");
    assert!(alone.contains("refused"), "{alone}");
}

/// Any address of the machine may be the one that the others know it by.
#[test]
fn a_name_that_means_the_loopback_to_its_machine_alone_is_met_at_every_address() {
    let port = |place: &Place| address(place).port();
    let here = Place::Point { host: "127.0.0.1".into(), port: port(&free()) };
    // What a machine calls itself is not known here, so that its name is put in by hand.
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(&here)));
    let key = Key::random().unwrap();
    let host =
        Host::listen(&[everywhere], "node01", key.clone(), options(0, 3, &key).into()).unwrap();
    let at = |host: &str| Place::Point { host: host.into(), port: port(&here) };
    let places = [at("127.0.0.1"), at("127.0.1.1")];
    let guests =
        [1, 2].map(|rank| meet(&places[rank as usize - 1], options(rank, 3, &key)).unwrap());
    let all = together(3, |rank| match rank {
        0 => host.exchange("a", &[0]).unwrap(),
        _ => guests[rank as usize - 1].exchange("a", &[rank as u8]).unwrap(),
    });
    assert_eq!(all, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn a_wrong_key_is_told_to_both_sides() {
    let (place, key) = (free(), Key::random().unwrap());
    let host = meet(&place, Options { limit: SHORT * 4, ..options(0, 2, &key) }).unwrap();
    let stranger = meet(&place, options(1, 2, &Key::random().unwrap())).unwrap();
    let error = stranger.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(error.contains("it has another job key") && error.contains("127.0.0.1:"), "{error}");
    let error = host.exchange("addresses", &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("rank 1 of 2 did not come") && error.contains("another job key"),
        "{error}"
    );
    assert!(!format!("{host:?}{stranger:?}{:?}", options(0, 2, &key)).contains(&key.to_text()));
    assert!(
        ask(&place, &Key::random().unwrap(), "x", LONG)
            .unwrap_err()
            .to_string()
            .contains("job key")
    );
}

#[test]
fn two_jobs_on_one_port_are_told_so() {
    let (place, key) = (free(), Key::random().unwrap());
    let _host = meet(&place, options(0, 2, &key)).unwrap();
    let other = Options { job: "other".into(), ..options(1, 2, &key) };
    let error = meet(&place, other.clone()).unwrap().exchange("a", &[]).unwrap_err().to_string();
    assert!(error.contains("job `test` meets at 127.0.0.1:"), "{error}");
    assert!(error.contains("belongs to job `other`: give one of them another port"), "{error}");
    let error = meet(&place, Options { world: World { rank: 0, size: 2 }, ..other }).unwrap_err();
    assert!(error.to_string().contains("another program listens at 127.0.0.1:"), "{error}");
}

#[test]
fn two_processes_with_one_rank_are_told_so_and_the_first_stays() {
    let (place, key) = (free(), Key::random().unwrap());
    let meets: Vec<_> = (0..2).map(|rank| meet(&place, options(rank, 2, &key)).unwrap()).collect();
    together(2, |rank| meets[rank as usize].exchange("a", &[rank as u8]).unwrap());
    let second = meet(&place, Options { limit: SHORT, ..options(1, 2, &key) }).unwrap();
    let error = second.exchange("a", &[9]).unwrap_err().to_string();
    assert!(error.contains("rank 1 is at 127.0.0.1:") && error.contains("same rank"), "{error}");
    assert_eq!(ask(&place, &key, "a", LONG).unwrap(), [Some(vec![0]), Some(vec![1])]);
}

#[test]
fn another_number_of_ranks_is_told() {
    let (place, key) = (free(), Key::random().unwrap());
    let _host = meet(&place, options(0, 4, &key)).unwrap();
    let error = meet(&place, options(1, 8, &key)).unwrap().exchange("a", &[]).unwrap_err();
    assert!(
        error.to_string().contains("rank 1 counts 8 ranks and rank 0 at 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn a_host_that_cannot_be_found_is_named() {
    let place: Place = "nowhere.invalid:29700".parse().unwrap();
    let key = Key::random().unwrap();
    let host = meet(&place, Options { limit: SHORT, ..options(0, 2, &key) });
    let error = host.unwrap_err().to_string();
    assert!(
        error.contains("the host `nowhere.invalid` of the meeting point cannot be found"),
        "{error}"
    );
    let guest = meet(&place, Options { limit: SHORT, ..options(1, 2, &key) }).unwrap();
    let error = guest.exchange("a", &[]).unwrap_err().to_string();
    assert!(
        error.contains("the host `nowhere.invalid` of the meeting point cannot be found"),
        "{error}"
    );
}

#[test]
fn rank_0_is_found_behind_an_address_that_its_machine_does_not_have() {
    let (near, key) = (free(), Key::random().unwrap());
    // Reserved for documentation: no machine has it. What leads from there to here is not made.
    let place = Place::Point { host: "192.0.2.1".into(), port: address(&near).port() };
    let host = meet(&place, options(0, 2, &key)).unwrap();
    let guest = meet(&near, options(1, 2, &key)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| guest.exchange("a", &[1]).unwrap());
        assert_eq!(host.exchange("a", &[0]).unwrap(), [[0], [1]]);
    });
}

#[test]
fn garbage_on_the_port_is_turned_away_and_disturbs_nobody() {
    let (place, key) = (free(), Key::random().unwrap());
    let host = meet(&place, options(0, 2, &key)).unwrap();
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
    let guest = meet(&place, options(1, 2, &key)).unwrap();
    let all = together(2, |rank| [&host, &guest][rank as usize].exchange("a", &[1]).unwrap());
    assert_eq!(all, vec![vec![vec![1], vec![1]]; 2]);
    drop(silent);
}

#[test]
fn what_listens_there_and_is_no_meeting_point_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 and so on and so forth\r\n").unwrap();
        let _ = stream.read_to_end(&mut vec![]);
    });
    let place = Place::Point { host: "127.0.0.1".into(), port };
    let guest = meet(&place, options(1, 2, &Key::random().unwrap())).unwrap();
    let error = guest.exchange("a", &[]).unwrap_err().to_string();
    assert!(error.contains("another program is at the other end"), "{error}");
    server.join().unwrap();
}

#[test]
fn what_is_too_long_is_not_sent() {
    let (place, key) = (free(), Key::random().unwrap());
    let host = meet(&place, options(0, 1, &key)).unwrap();
    let longest = vec![7; LONGEST_VALUE];
    assert_eq!(host.exchange("a", &longest).unwrap(), std::slice::from_ref(&longest));
    assert!(host.exchange("a", &[&longest[..], &[0]].concat()).is_err());
    assert!(host.exchange(&"n".repeat(LONGEST_NAME + 1), &[]).is_err());
    let long = Options { job: "j".repeat(LONGEST_JOB + 1), ..options(0, 1, &key) };
    assert!(meet(&free(), long).is_err());
}

/// What counts as silence where that is tested.
const SILENT: Duration = Duration::from_secs(2);

/// Writes it over longer than `SILENT`, with pauses that are far shorter.
fn drip(mut stream: &TcpStream, bytes: &[u8]) {
    for piece in bytes.chunks(bytes.len().div_ceil(40)) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(SILENT / 25);
    }
}

/// With little patience for silence.
fn impatient(rank: u32) -> Job {
    Job { silence: SILENT, ..Job::new(World { rank, size: 2 }, "test".to_owned(), LONG) }
}

#[test]
fn a_book_that_takes_long_to_come_is_no_silence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (place, key) = (Place::Point { host: "127.0.0.1".into(), port }, Key::random().unwrap());
    let host = std::thread::spawn({
        let key = key.clone();
        move || {
            let (mut stream, _) = listener.accept().unwrap();
            let who = Who::Rank { rank: 0, life: 1 };
            let hello = Hello { job: "test".to_owned(), size: 2, who };
            prove(&mut stream, &key, Role::Listens, &hello.to_bytes()).unwrap();
            stream.write_all(&Message::Welcome.to_frame()).unwrap();
            let mut frames = Frames::new(own(stream.try_clone().unwrap()).unwrap(), usize::MAX);
            let Some(Message::Give { name, value, .. }) = frames.next(LONG).unwrap() else {
                panic!("it gives something")
            };
            let values = vec![Some(vec![3; 9999]), Some(value)];
            drip(&stream, &Message::Book { name, values }.to_frame());
            // A guest that comes again finds nobody.
        }
    });
    let to = (place.clone(), key);
    let ask = Box::new(move || Ok(to.clone()));
    let directions = Directions { ask, may_change: false, name: place.to_string() };
    let guest = Guest::come(directions, Job { limit: 10 * SILENT, ..impatient(1) }).unwrap();
    let all = guest.exchange("address", &[1]).unwrap();
    assert_eq!(all, [vec![3; 9999], vec![1]]);
    host.join().unwrap();
}

#[test]
fn what_takes_long_to_be_given_is_no_silence() {
    let (place, key) = (free(), Key::random().unwrap());
    let name = place.to_string();
    let host = Host::listen(&[address(&place)], &name, key.clone(), impatient(0)).unwrap();
    let who = Who::Rank { rank: 1, life: 1 };
    let mut frames = visit(&place, &key, &Hello { job: "test".to_owned(), size: 2, who }).unwrap();
    let give = Message::Give { name: "address".to_owned(), waits: true, value: vec![7; 9999] };
    drip(frames.stream(), &give.to_frame());
    assert_eq!(host.exchange("address", &[1]).unwrap(), [vec![1], vec![7; 9999]]);
    assert!(matches!(frames.next(LONG).unwrap(), Some(Message::Book { .. })));
}

#[test]
fn a_message_above_4_gib_is_awaited_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut frames = Frames::new(own(listener.accept().unwrap().0).unwrap(), usize::MAX);
    // Its lowest 32 bits are the length of a message.
    let here = Message::Here.to_frame();
    let length = (1u64 << 32) + (here.len() - wire::LENGTH) as u64;
    writer.write_all(&length.to_le_bytes()).unwrap();
    writer.write_all(&here[wire::LENGTH..]).unwrap();
    assert_eq!(frames.next(SHORT).unwrap(), None);
}

/// Waits until a meeting point has forgotten an exchange.
fn await_forgotten(place: &Place, key: &Key, name: &str) {
    while ask(place, key, name, LONG).unwrap().iter().any(Option::is_some) {
        std::thread::yield_now();
    }
}

#[test]
fn what_all_ranks_have_released_is_kept_no_longer() {
    let (place, key) = (free(), Key::random().unwrap());
    let come = |rank| meet(&place, options(rank, 3, &key)).unwrap();
    let mut meets: Vec<_> = (0..3).map(come).collect();
    for name in ["address", "loader 0", "loader 1"] {
        together(3, |rank| meets[rank as usize].exchange(name, &[rank as u8]).unwrap());
    }
    for meet in &meets {
        meet.release("loader 0");
    }
    for meet in &meets[..2] {
        meet.release("loader 1");
    }
    await_forgotten(&place, &key, "loader 0");
    // One that was started again is told so, and gets what somebody still needs.
    meets.pop();
    let again = come(2);
    assert_eq!(again.exchange("address", &[7]).unwrap(), [[0], [1], [7]]);
    let error = again.exchange("loader 0", &[7]).unwrap_err();
    assert_eq!(error, MeetError::Over("loader 0".to_owned()));
    assert_eq!(again.exchange("loader 1", &[7]).unwrap(), [[0], [1], [7]]);
    again.release("loader 1");
    await_forgotten(&place, &key, "loader 1");
    // And so is rank 0, by those who have been there all the time.
    drop(meets.remove(0));
    let first = come(0);
    assert_eq!(first.exchange("address", &[8]).unwrap(), [[8], [1], [7]]);
    for name in ["loader 0", "loader 1"] {
        assert_eq!(first.exchange(name, &[8]).unwrap_err(), MeetError::Over(name.to_owned()));
    }
    let others = [&meets[0], &again];
    let next = together(3, |rank| match rank {
        0 => first.exchange("loader 2", &[0]).unwrap(),
        rank => others[rank as usize - 1].exchange("loader 2", &[rank as u8]).unwrap(),
    });
    assert_eq!(next, vec![vec![vec![0], vec![1], vec![2]]; 3]);
}

#[test]
fn a_thousand_exchanges_leave_nothing_but_traces() {
    let (place, key) = (free(), Key::random().unwrap());
    let meets: Vec<_> = (0..2).map(|rank| meet(&place, options(rank, 2, &key)).unwrap()).collect();
    for number in 0..1000 {
        let name = format!("loader {number}");
        together(2, |rank| {
            let meet = &meets[rank as usize];
            meet.exchange(&name, &[0; 1000]).unwrap();
            meet.release(&name);
        });
    }
    await_forgotten(&place, &key, "loader 999");
    let left = (0..1000).filter(|number| {
        let given = ask(&place, &key, &format!("loader {number}"), LONG).unwrap();
        given.iter().any(Option::is_some)
    });
    assert_eq!(left.count(), 0);
}
