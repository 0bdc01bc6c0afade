//! Runs: starts nodes, injects faults, and checks that every running node gets its samples.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::RunArgs;
use crate::faults::{self, Kind};
use crate::job::NODES;
use crate::node::Vitals;
use crate::proxy::Proxy;
use crate::random::Random;

/// Ranks that are never killed: rank 0 is the rendezvous server.
const SURVIVORS: u32 = 2;
/// Longer than any run takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(5);
const LOOK: Duration = Duration::from_millis(20);
/// A fault that has not shown by then does not count.
const SHOWS: Duration = Duration::from_secs(10);
/// A node that disappears returns after this many milliseconds: less and more than a call may take.
const ABSENCE: (u64, u64) = (300, 4000);
/// The size of a node's disk: larger than its tier.
const DISK: &str = "8m";

struct Node {
    child: Child,
    life: u32,
}

/// A fault that has not shown yet.
struct Pending {
    kind: Kind,
    victim: u32,
    life: u32,
    /// The victim's counter before.
    before: u64,
    link: Option<usize>,
    until: Instant,
}

/// Something that is repaired later.
enum Repair {
    Mend(usize),
    Undelay(usize),
    Empty(u32),
    Start(u32),
    Continue(u32),
    Join(u32),
}

struct Run<'a> {
    args: &'a RunArgs,
    seed: u64,
    random: Random,
    directory: PathBuf,
    /// Disks are file systems of their own.
    mounted: bool,
    /// The link from a to b at a * NODES + b.
    links: Vec<Proxy>,
    nodes: Vec<Option<Node>>,
    lives: Vec<u32>,
    pending: Vec<Pending>,
    repairs: Vec<(Instant, Repair)>,
    seen: BTreeMap<Kind, usize>,
    unseen: BTreeMap<Kind, usize>,
}

pub fn all(args: &RunArgs) -> anyhow::Result<()> {
    for seed in args.first..args.first + args.seeds {
        let started = Instant::now();
        let summary = one(args, seed).with_context(|| format!("seed {seed}"))?;
        println!("seed {seed}: {summary}, in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

fn one(args: &RunArgs, seed: u64) -> anyhow::Result<String> {
    let directory = tempfile::tempdir()?;
    let mut run = Run::new(args, seed, directory.path())?;
    let outcome = run.go();
    run.end();
    outcome
}

impl<'a> Run<'a> {
    fn new(args: &'a RunArgs, seed: u64, directory: &Path) -> anyhow::Result<Self> {
        let link = |at: u32| Proxy::open(directory.join(format!("port.{}", at % NODES)));
        let links = (0..NODES * NODES).map(link).collect::<Result<_, _>>()?;
        let mut run = Self {
            args,
            seed,
            random: Random::new(seed),
            directory: directory.to_owned(),
            mounted: true,
            links,
            nodes: (0..NODES).map(|_| None).collect(),
            lives: vec![0; NODES as usize],
            pending: vec![],
            repairs: vec![],
            seen: BTreeMap::new(),
            unseen: BTreeMap::new(),
        };
        for rank in 0..NODES {
            std::fs::create_dir_all(run.disk(rank))?;
            run.mounted &= mount(&run.disk(rank));
        }
        if !run.mounted {
            eprintln!("file systems cannot be mounted here: disks are not filled");
        }
        Ok(run)
    }

    fn disk(&self, rank: u32) -> PathBuf {
        self.directory.join(format!("disk.{rank}"))
    }

    fn start(&mut self, rank: u32) -> anyhow::Result<()> {
        let life = self.lives[rank as usize];
        self.lives[rank as usize] += 1;
        let ports = (0..NODES).map(|to| self.link(rank, to).port.to_string());
        let child = Command::new(std::env::current_exe()?)
            .arg("node")
            .args(["--rank", &rank.to_string(), "--life", &life.to_string()])
            .args(["--seed", &self.seed.to_string(), "--epochs", &self.args.epochs.to_string()])
            .arg("--directory")
            .arg(&self.directory)
            .arg("--disk")
            .arg(self.disk(rank).join("tier"))
            .args(["--proxies", &ports.collect::<Vec<_>>().join(",")])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start a node")?;
        self.nodes[rank as usize] = Some(Node { child, life });
        Ok(())
    }

    fn link(&self, from: u32, to: u32) -> &Proxy {
        &self.links[(from * NODES + to) as usize]
    }

    /// Returns the status of a node, if it has reported one since its start.
    fn vitals(&self, rank: u32) -> Option<Vitals> {
        let life = self.nodes[rank as usize].as_ref()?.life;
        let text = std::fs::read_to_string(self.directory.join(format!("vitals.{rank}"))).ok()?;
        let vitals: Vitals = serde_json::from_str(&text).ok()?;
        (vitals.life == life).then_some(vitals)
    }

    fn go(&mut self) -> anyhow::Result<String> {
        for rank in 0..NODES {
            self.start(rank)?;
        }
        let began = Instant::now();
        let mut next = Instant::now();
        loop {
            std::thread::sleep(LOOK);
            ensure!(began.elapsed() < LIMIT, "the run does not end: {}", self.summary());
            self.look_at_children()?;
            self.repair()?;
            self.confirm();
            let survivors: Vec<_> = (0..SURVIVORS).filter_map(|rank| self.vitals(rank)).collect();
            if survivors.len() == SURVIVORS as usize && survivors.iter().all(|one| one.done) {
                break;
            }
            let running = survivors.iter().any(|one| one.epochs > 0 || one.from_source > 0);
            if running && Instant::now() >= next {
                self.break_something();
                next = Instant::now() + self.random.millis(20, 160);
            }
        }
        self.judge()
    }

    /// A node that ends by itself has found an error.
    fn look_at_children(&mut self) -> anyhow::Result<()> {
        for rank in 0..NODES {
            let Some(node) = &mut self.nodes[rank as usize] else { continue };
            let life = node.life;
            if let Some(status) = node.child.try_wait()? {
                bail!("rank {rank} in life {life} ended: {status}; {}", self.summary());
            }
        }
        Ok(())
    }

    fn break_something(&mut self) {
        let kind = Kind::draw(&mut self.random);
        let victim = self.random.between(0, u64::from(NODES) - 1) as u32;
        let other = (victim + self.random.between(1, u64::from(NODES) - 1) as u32) % NODES;
        let Some(vitals) = self.vitals(victim) else { return };
        if matches!(kind, Kind::Stop | Kind::Isolate) && self.is_one_away() {
            return;
        }
        let link = (victim * NODES + other) as usize;
        let now = Instant::now();
        let mut pending = Pending {
            kind,
            victim,
            life: vitals.life,
            before: kind.counter(&vitals),
            link: None,
            until: now + SHOWS,
        };
        match kind {
            Kind::Cut => {
                self.links[link].cut();
                let until = now + self.random.millis(20, 600);
                self.repairs.push((until, Repair::Mend(link)));
            }
            Kind::Delay => {
                pending.before = faults::delayed(&self.links[link]);
                pending.link = Some(link);
                let delay = self.random.between(5, 300);
                self.links[link].state.delay.store(delay, Ordering::SeqCst);
                let until = now + self.random.millis(100, 800);
                self.repairs.push((until, Repair::Undelay(link)));
            }
            Kind::Flip => {
                self.links[link].state.flips.fetch_add(1, Ordering::SeqCst);
            }
            Kind::Damage => {
                let tier = self.disk(victim).join("tier");
                if !faults::damage(&tier, &mut self.random) {
                    return;
                }
            }
            Kind::FullDisk => {
                if !self.mounted || !self.kill(victim) {
                    return;
                }
                // The node restarts on a full disk without an earlier cache, since a tier keeps the
                // space that it has.
                let _ = std::fs::remove_dir_all(self.disk(victim).join("tier"));
                faults::fill(&self.disk(victim));
                let until = now + self.random.millis(2000, 6000);
                self.repairs.push((until, Repair::Empty(victim)));
                pending.life = self.lives[victim as usize];
                pending.before = 0;
                pending.until = until + SHOWS;
            }
            Kind::Kill => {
                self.kill(victim);
                return;
            }
            Kind::Stop => {
                self.stop(victim);
                return;
            }
            Kind::Isolate => {
                self.hold(victim, true);
                let until = now + self.random.millis(ABSENCE.0, ABSENCE.1);
                self.repairs.push((until, Repair::Join(victim)));
            }
        }
        self.pending.push(pending);
    }

    /// Kills a node, which is restarted after a while; returns whether it ran and may be killed.
    fn kill(&mut self, victim: u32) -> bool {
        if victim < SURVIVORS {
            return false;
        }
        let Some(mut node) = self.nodes[victim as usize].take() else { return false };
        // SIGKILL.
        let _ = node.child.kill();
        let status = node.child.wait();
        let seen = status.is_ok_and(|status| status.signal() == Some(9));
        *if seen { &mut self.seen } else { &mut self.unseen }.entry(Kind::Kill).or_default() += 1;
        let until = Instant::now() + self.random.millis(50, 800);
        self.repairs.push((until, Repair::Start(victim)));
        true
    }

    /// Returns whether a node is stopped or isolated. One at a time: a run has to end.
    fn is_one_away(&self) -> bool {
        let away = |repair: &Repair| matches!(repair, Repair::Continue(_) | Repair::Join(_));
        self.repairs.iter().any(|(_, repair)| away(repair))
    }

    /// Stops a node's process for a while.
    fn stop(&mut self, victim: u32) {
        let Some(node) = &self.nodes[victim as usize] else { return };
        let seen = signal(&node.child, Signal::STOP) && is_stopped(&node.child);
        *if seen { &mut self.seen } else { &mut self.unseen }.entry(Kind::Stop).or_default() += 1;
        let until = Instant::now() + self.random.millis(ABSENCE.0, ABSENCE.1);
        self.repairs.push((until, Repair::Continue(victim)));
    }

    /// Holds the bytes to and from a node, or passes them again.
    fn hold(&mut self, victim: u32, held: bool) {
        for other in 0..NODES {
            for link in [victim * NODES + other, other * NODES + victim] {
                self.links[link as usize].state.is_held.store(held, Ordering::SeqCst);
            }
        }
    }

    fn repair(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let due: Vec<_> = self.repairs.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, repair) in due {
            match repair {
                Repair::Mend(link) => self.links[link].mend(),
                Repair::Undelay(link) => self.links[link].state.delay.store(0, Ordering::SeqCst),
                Repair::Empty(rank) => faults::empty(&self.disk(rank)),
                Repair::Start(rank) => self.start(rank)?,
                Repair::Join(rank) => self.hold(rank, false),
                Repair::Continue(rank) => {
                    if let Some(node) = &self.nodes[rank as usize] {
                        signal(&node.child, Signal::CONT);
                    }
                }
            }
        }
        Ok(())
    }

    /// The faults that show in a counter of their victim.
    fn confirm(&mut self) {
        let now = Instant::now();
        for pending in std::mem::take(&mut self.pending) {
            let vitals = self.vitals(pending.victim).filter(|one| one.life == pending.life);
            let count = match (pending.link, &vitals) {
                (Some(link), _) => faults::delayed(&self.links[link]),
                (None, Some(vitals)) => pending.kind.counter(vitals),
                (None, None) => 0,
            };
            let gone = self.lives[pending.victim as usize] > pending.life + 1;
            if count > pending.before {
                *self.seen.entry(pending.kind).or_default() += 1;
            } else if now >= pending.until || gone {
                *self.unseen.entry(pending.kind).or_default() += 1;
            } else {
                self.pending.push(pending);
            }
        }
    }

    fn judge(&mut self) -> anyhow::Result<String> {
        for rank in 0..SURVIVORS {
            let vitals = self.vitals(rank).context("a survivor has not told how it is")?;
            ensure!(
                vitals.epochs == self.args.epochs,
                "rank {rank} has seen {} epochs",
                vitals.epochs
            );
        }
        let seen: usize = self.seen.values().sum();
        ensure!(seen >= self.args.faults, "only {seen} faults have shown: {}", self.summary());
        Ok(self.summary())
    }

    fn summary(&self) -> String {
        let total: usize = self.seen.values().sum();
        let count = |of: &BTreeMap<Kind, usize>, kind| of.get(&kind).copied().unwrap_or(0);
        let each = Kind::ALL.map(|kind| {
            format!("{kind:?} {}+{}", count(&self.seen, kind), count(&self.unseen, kind))
        });
        let nodes = (0..NODES).map(|rank| match self.vitals(rank) {
            Some(one) => format!(
                "rank {rank} (life {}) {} epochs, longest wait {} ms, {} from source, {} from \
                 peers",
                one.life, one.epochs, one.longest_wait_ms, one.from_source, one.from_peers
            ),
            None => format!("rank {rank} is not there"),
        });
        format!(
            "{total} faults shown (shown+not: {}); {}",
            each.join(", "),
            nodes.collect::<Vec<_>>().join("; ")
        )
    }

    fn end(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        if self.mounted {
            for rank in 0..NODES {
                let _ = Command::new("umount").arg(self.disk(rank)).status();
            }
        }
    }
}

fn mount(directory: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &format!("size={DISK},mode=700"), "chaos"]).arg(directory);
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Sends a signal; returns whether that succeeded.
fn signal(child: &Child, signal: Signal) -> bool {
    kill_process(Pid::from_child(child), signal).is_ok()
}

/// Returns whether a process is stopped, or is about to be.
fn is_stopped(child: &Child) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let status = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
        // The state follows the name, which is in parentheses.
        status.is_ok_and(|text| text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    })
}
