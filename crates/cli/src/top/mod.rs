//! `belady top`: shows all nodes of a running job on one screen.
//!
//! Every node publishes its vitals at the job's rendezvous each second. A client with the job's key
//! can query them there ([`query`]) without any effect on the job. [`monitor`] computes rates from
//! them, [`columns`] makes a table of the rates, and [`view`] draws the screen.

mod columns;
mod monitor;
mod query;
mod view;

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use belady_engine::metrics::unix_ms;
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::monitor::{JobMonitor, JobView};
use self::query::{JobVitals, VitalsQuery};
use self::view::Screen;
use crate::text::table;
use crate::usage::UsageError;
use belady_base::environment;

/// The interval between two queries, the same as the interval at which nodes publish.
const EVERY: Duration = Duration::from_secs(1);
/// A time in which every node publishes at least once.
const TWICE: Duration = Duration::from_millis(2200);
/// The time to wait for a key before the screen is drawn again.
const BLINK: Duration = Duration::from_millis(100);

/// The options of `belady top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// The job's rendezvous address, HOST:PORT or a directory, as given to its processes [default:
    /// BELADY_MEET]
    #[arg(long, value_name = "PLACE")]
    meet: Option<String>,
    /// A file with the job's key, not needed with a directory [default: BELADY_KEY,
    /// BELADY_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let query = VitalsQuery::new(args.meet.as_deref(), args.key_file.as_deref())?;
    if args.once {
        return once(&query);
    }
    if !std::io::stdout().is_terminal() {
        return Err(UsageError::new(
            "standard output is not a terminal: use `belady top --once` to print a table",
        )
        .into());
    }
    live(query)
}

/// Queries twice, since a rate is the difference of two values.
fn once(query: &VitalsQuery) -> anyhow::Result<()> {
    let (start, mut monitor) = (Instant::now(), JobMonitor::new(unix_ms()));
    monitor.record(start.elapsed(), query.ask()?);
    std::thread::sleep(TWICE);
    monitor.record(start.elapsed(), query.ask()?);
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    out.write_all(text(&monitor.view(start.elapsed())).as_bytes())?;
    Ok(())
}

/// Returns the table with all columns.
fn text(view: &JobView) -> String {
    let columns = columns::columns(view);
    let headings: Vec<&str> = columns.iter().map(|column| column.heading.as_str()).collect();
    let row = |row: usize| columns.iter().map(|c| c.cells[row].text.clone()).collect();
    let rows: Vec<Vec<String>> = (0..view.rows().len()).map(row).collect();
    table(&headings, &rows)
}

fn live(query: VitalsQuery) -> anyhow::Result<()> {
    let place = query.place();
    // A wrong address or key ends the command before it draws.
    let first = query.ask()?;
    let answers = answers(query)?;
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let result = show(&mut terminal, &answers, first, place);
    ratatui::restore();
    result
}

/// Starts a thread that queries each second, until the receiver is dropped.
fn answers(query: VitalsQuery) -> anyhow::Result<Receiver<anyhow::Result<JobVitals>>> {
    let (send, answers) = channel();
    std::thread::Builder::new()
        .name("query".into())
        .spawn(move || {
            while send.send(query.ask()).is_ok() {
                std::thread::sleep(EVERY);
            }
        })
        .context("cannot start a thread")?;
    Ok(answers)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    answers: &Receiver<anyhow::Result<JobVitals>>,
    first: JobVitals,
    place: String,
) -> anyhow::Result<()> {
    let (start, mut monitor) = (Instant::now(), JobMonitor::new(unix_ms()));
    let colour = environment::NO_COLOR.value().is_none();
    let mut screen = Screen { place, top: 0, error: None, colour };
    monitor.record(start.elapsed(), first);
    loop {
        match answers.try_recv() {
            Ok(Ok(vitals)) => {
                screen.error = None;
                monitor.record(start.elapsed(), vitals);
            }
            Ok(Err(error)) => screen.error = Some(format!("{error:#}; trying again")),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        let view = monitor.view(start.elapsed());
        terminal.draw(|frame| screen.draw(frame, &view))?;
        if !event::poll(BLINK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => match key_action(key) {
                Some(KeyAction::Quit) => return Ok(()),
                Some(KeyAction::Scroll(lines)) => {
                    let last = view.rows().len().saturating_sub(1);
                    screen.top = screen.top.saturating_add_signed(lines).min(last);
                }
                None => {}
            },
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyAction {
    Quit,
    Scroll(isize),
}

fn key_action(key: KeyEvent) -> Option<KeyAction> {
    Some(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => KeyAction::Quit,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => KeyAction::Quit,
        KeyCode::Down | KeyCode::Char('j') => KeyAction::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => KeyAction::Scroll(-1),
        KeyCode::PageDown => KeyAction::Scroll(10),
        KeyCode::PageUp => KeyAction::Scroll(-10),
        KeyCode::Home => KeyAction::Scroll(isize::MIN),
        KeyCode::End => KeyAction::Scroll(isize::MAX),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use belady_engine::metrics::{RankVitals, ThreadVitals, Vitals};

    use super::monitor::tests::vitals;
    use super::*;

    #[test]
    fn the_table_has_every_column_and_a_line_for_each_node() {
        let mut monitor = JobMonitor::default();
        for second in [1, 2] {
            let at = Duration::from_secs(second);
            monitor.record(at, vec![Some(vitals(second, 50)), None]);
        }
        let text = text(&monitor.view(Duration::from_secs(2)));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for heading in ["rank", "state", "source", "peers", "ring", "ram full", "reached", "host"] {
            assert!(lines[0].contains(heading), "{text}");
        }
        assert!(lines[1].contains("50.0 MB/s") && lines[1].ends_with("node"), "{text}");
        assert!(lines[2].contains("awaited"), "{text}");
    }

    #[test]
    fn a_node_of_several_ranks_has_a_line_for_each() {
        let mut monitor = JobMonitor::default();
        for second in [1, 2] {
            let rank = |rank, straggled| RankVitals {
                rank,
                batches: 10 * second,
                blocked_ms: 100 * second,
                straggled: straggled * second,
                straggling_ms: 10 * straggled * second,
                threads: ThreadVitals { loading: 4, transforming: 0 },
            };
            let ranks = vec![rank(0, 0), rank(1, 3)];
            let node = Vitals { ranks, ..vitals(second, 50) };
            monitor.record(Duration::from_secs(second), vec![Some(node)]);
        }
        let text = text(&monitor.view(Duration::from_secs(2)));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..6], ["rank", "state", "rate", "stall", "slowest", "lost"], "{text}");
        assert!(lines[0].contains(&"threads") && lines[1].contains(&"6+2"), "{text}");
        assert_eq!(lines[2][..1], ["r0"], "{text}");
        assert_eq!(lines[3][..], ["r1", "10.0", "%", "30.0", "%", "3.0", "%", "4"], "{text}");
    }

    #[test]
    fn keys_quit_and_scroll() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(key_action(key(KeyCode::Char('q'))), Some(KeyAction::Quit));
        assert_eq!(key_action(key(KeyCode::Char('c'))), None, "only with Control");
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(key_action(control), Some(KeyAction::Quit));
        assert_eq!(key_action(key(KeyCode::PageUp)), Some(KeyAction::Scroll(-10)));
    }
}
