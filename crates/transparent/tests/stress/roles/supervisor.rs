//! The program: starts readers, and kills and restarts one now and then.

use std::process::{Child, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::{Role, Settings};
use crate::processes::{MARK, command, lines};
use crate::random::Random;

struct Reader {
    child: Child,
    settings: Settings,
    was_killed: bool,
}

/// A line of a reader, or None at its end, with the reader's number.
type Event = (usize, Option<String>);

pub fn supervise(settings: &Settings) {
    let (sender, events) = channel();
    let mut random = Random::new(settings.seed);
    let mut kills = settings.kills;
    let mut readers: Vec<Reader> = (0..settings.readers)
        .map(|number| {
            let seed = settings.seed.wrapping_mul(31).wrapping_add(number.into());
            start(Settings { seed, ..settings.clone() }, number as usize, &sender)
        })
        .collect();
    let mut running = readers.len();
    while running > 0 {
        let (number, said) = events.recv().unwrap();
        let reader = &mut readers[number];
        match said {
            Some(line) => {
                if let Some(epoch) = line.strip_prefix("epoch ") {
                    reader.settings.first_epoch = epoch.parse::<u32>().unwrap() + 1;
                }
                println!("\n{MARK}reader {number}: {line}");
                // A reader prints about eighty lines, so most are killed far from their end.
                if kills > 0 && !reader.was_killed && random.below(20) == 0 {
                    kills -= 1;
                    reader.was_killed = true;
                    reader.child.kill().unwrap();
                }
            }
            None if reader.was_killed => {
                reader.child.wait().unwrap();
                *reader = start(reader.settings.clone(), number, &sender);
            }
            None => {
                let status = reader.child.wait().unwrap();
                assert!(status.success(), "reader {number} failed, {status}");
                running -= 1;
            }
        }
    }
    println!("\n{MARK}all readers are done");
}

fn start(settings: Settings, number: usize, events: &Sender<Event>) -> Reader {
    let mut child = command(Role::Reader, &settings).stdout(Stdio::piped()).spawn().unwrap();
    let said = lines(&mut child);
    let events = events.clone();
    thread::spawn(move || {
        for line in said {
            let _ = events.send((number, Some(line)));
        }
        let _ = events.send((number, None));
    });
    Reader { child, settings, was_killed: false }
}
