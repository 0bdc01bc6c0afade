//! `belady top`: all nodes of a running job on one screen.
//!
//! Every node leaves word of how it is doing at the job's meeting point, each second. Whoever has the
//! job's key may ask for it there ([`ask`]); nothing else of the job is touched. [`watch`] makes rates
//! of what was told, [`columns`] a table of them, and [`view`] the screen.

mod ask;
mod columns;
mod view;
mod watch;

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use belady_engine::metrics::unix_ms;
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::ask::{Asker, Told};
use self::view::Screen;
use self::watch::{Picture, Watch};
use crate::environment;
use crate::text::table;
use crate::usage::UsageError;

/// As often as nodes tell something new.
const EVERY: Duration = Duration::from_secs(1);
/// Until two things that a node told differ, for sure.
const TWICE: Duration = Duration::from_millis(2200);
/// How long a key is waited for before the screen is looked at again.
const BLINK: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Where the job meets, as its processes were told: a HOST:PORT or a directory [default: BELADY_MEET]
    #[arg(long, value_name = "PLACE")]
    meet: Option<String>,
    /// A file with the job's key; a directory has it [default: the key in BELADY_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print one table and end
    #[arg(long)]
    once: bool,
}

pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let asker = Asker::new(args.meet.as_deref(), args.key_file.as_deref())?;
    if args.once {
        return once(&asker);
    }
    if !std::io::stdout().is_terminal() {
        return Err(UsageError::new(
            "there is no terminal to draw on: use `belady top --once` for a table",
        )
        .into());
    }
    live(asker)
}

/// Asks twice, since a rate is the difference of two moments.
fn once(asker: &Asker) -> anyhow::Result<()> {
    let (start, mut watch) = (Instant::now(), Watch::new(unix_ms()));
    watch.hear(start.elapsed(), asker.ask()?);
    std::thread::sleep(TWICE);
    watch.hear(start.elapsed(), asker.ask()?);
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    out.write_all(text(&watch.picture(start.elapsed())).as_bytes())?;
    Ok(())
}

/// All columns, for a script or a log.
fn text(picture: &Picture) -> String {
    let columns = columns::columns(picture);
    let headings: Vec<&str> = columns.iter().map(|column| column.heading.as_str()).collect();
    let row = |node: usize| columns.iter().map(|c| c.cells[node].text.clone()).collect();
    let rows: Vec<Vec<String>> = (0..picture.nodes.len()).map(row).collect();
    table(&headings, &rows)
}

fn live(asker: Asker) -> anyhow::Result<()> {
    let place = asker.place();
    // A wrong place or key is told at once, and not on the screen.
    let first = asker.ask()?;
    let answers = answers(asker)?;
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let result = show(&mut terminal, &answers, first, place);
    ratatui::restore();
    result
}

/// What is told, each second, by a thread that ends when nobody listens any more.
fn answers(asker: Asker) -> anyhow::Result<Receiver<anyhow::Result<Told>>> {
    let (tell, told) = channel();
    std::thread::Builder::new()
        .name("asker".into())
        .spawn(move || {
            while tell.send(asker.ask()).is_ok() {
                std::thread::sleep(EVERY);
            }
        })
        .context("cannot start a thread")?;
    Ok(told)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    answers: &Receiver<anyhow::Result<Told>>,
    first: Told,
    place: String,
) -> anyhow::Result<()> {
    let (start, mut watch) = (Instant::now(), Watch::new(unix_ms()));
    let colour = environment::NO_COLOR.value().is_none();
    let mut screen = Screen { place, top: 0, trouble: None, colour };
    watch.hear(start.elapsed(), first);
    loop {
        match answers.try_recv() {
            Ok(Ok(told)) => {
                screen.trouble = None;
                watch.hear(start.elapsed(), told);
            }
            Ok(Err(error)) => screen.trouble = Some(format!("{error:#}; trying again")),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        let picture = watch.picture(start.elapsed());
        terminal.draw(|frame| screen.draw(frame, &picture))?;
        if !event::poll(BLINK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => match wish(key) {
                Some(Wish::Quit) => return Ok(()),
                Some(Wish::Scroll(lines)) => {
                    let last = picture.nodes.len().saturating_sub(1);
                    screen.top = screen.top.saturating_add_signed(lines).min(last);
                }
                None => {}
            },
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Scroll(isize),
}

fn wish(key: KeyEvent) -> Option<Wish> {
    Some(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Down | KeyCode::Char('j') => Wish::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Wish::Scroll(-1),
        KeyCode::PageDown => Wish::Scroll(10),
        KeyCode::PageUp => Wish::Scroll(-10),
        KeyCode::Home => Wish::Scroll(isize::MIN),
        KeyCode::End => Wish::Scroll(isize::MAX),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::watch::tests::told;
    use super::*;

    #[test]
    fn a_table_has_every_column_and_a_line_a_node() {
        let mut watch = Watch::default();
        for second in [1, 2] {
            let at = Duration::from_secs(second);
            watch.hear(at, vec![Some(told(second, 50)), None]);
        }
        let text = text(&watch.picture(Duration::from_secs(2)));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for heading in ["rank", "state", "source", "peers", "ring", "ram full", "reached", "host"] {
            assert!(lines[0].contains(heading), "{text}");
        }
        assert!(lines[1].contains("50.0 MB/s") && lines[1].ends_with("node"), "{text}");
        assert!(lines[2].contains("awaited"), "{text}");
    }

    #[test]
    fn keys_quit_and_scroll() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(wish(key(KeyCode::Char('q'))), Some(Wish::Quit));
        assert_eq!(wish(key(KeyCode::Char('c'))), None, "only with Control");
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(wish(control), Some(Wish::Quit));
        assert_eq!(wish(key(KeyCode::PageUp)), Some(Wish::Scroll(-10)));
    }
}
