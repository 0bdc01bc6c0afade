//! Draws the screen: a summary line, the rate over time, the split of the threads over time, the
//! table of nodes and the keys. Parts that do not fit are left out, the least important first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Sparkline, Table};

use super::columns::{GAP, Tone, VitalsColumn, columns, fitting, per_second};
use super::monitor::JobView;
use crate::text::percent;

/// The lines of the rate over time, with its heading.
const HISTORY: u16 = 5;
/// A lower screen leaves out the rate over time.
const HEIGHT_FOR_HISTORY: u16 = 16;
/// The lines of the split over time: one for each duty, and a space.
const SPLIT: u16 = 3;
/// A lower screen leaves out the split over time.
const HEIGHT_FOR_SPLIT: u16 = 20;

/// The state of the screen.
#[derive(Clone, Debug)]
pub struct Screen {
    /// The job's rendezvous address.
    pub place: String,
    /// The first line of the table that is shown.
    pub top: usize,
    /// The error of the last query.
    pub error: Option<String>,
    pub colour: bool,
}

impl Screen {
    /// Draws the screen.
    pub fn draw(&self, frame: &mut Frame<'_>, view: &JobView) {
        let all = frame.area();
        let history = if all.height >= HEIGHT_FOR_HISTORY { HISTORY } else { 0 };
        // Where nothing is transformed, there is nothing to split.
        let is_split = view.splits.iter().any(|threads| threads.transforming > 0);
        let split = if is_split && all.height >= HEIGHT_FOR_SPLIT { SPLIT } else { 0 };
        let foot = u16::from(all.height >= 4);
        let [head, past, duties, nodes, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(history),
            Constraint::Length(split),
            Constraint::Fill(1),
            Constraint::Length(foot),
        ])
        .areas(all);
        frame.render_widget(self.head(view), head);
        if history > 0 {
            self.draw_history(frame, past, view);
        }
        if split > 0 {
            self.draw_split(frame, duties, view);
        }
        frame.render_widget(self.table(view, nodes), nodes);
        frame.render_widget(self.foot(), keys);
    }

    fn head(&self, view: &JobView) -> Line<'static> {
        let text = format!(
            "{} of {} nodes up  {}  stall {}  {}",
            view.up(),
            view.nodes.len(),
            per_second(view.rate()),
            percent(view.stall()),
            self.place,
        );
        Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
    }

    fn draw_history(&self, frame: &mut Frame<'_>, area: Rect, view: &JobView) {
        let [heading, graph, _space] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(HISTORY - 2),
            Constraint::Length(1),
        ])
        .areas(area);
        let shown = &view.history[view.history.len().saturating_sub(graph.width.into())..];
        let most = shown.iter().copied().max().unwrap_or(0);
        let text = format!("all nodes, at most {}", per_second(most as f64));
        frame.render_widget(Line::from(text), heading);
        let bars = Sparkline::default().data(shown).style(self.style(Tone::Good));
        frame.render_widget(bars, graph);
    }

    /// Draws a line for each duty on one scale, so that what one gains the other loses.
    fn draw_split(&self, frame: &mut Frame<'_>, area: Rect, view: &JobView) {
        let [load, transform, _space] = Layout::vertical([Constraint::Length(1); 3]).areas(area);
        let loading: Vec<u64> = view.splits.iter().map(|threads| threads.loading).collect();
        let transforming: Vec<u64> =
            view.splits.iter().map(|threads| threads.transforming).collect();
        let all = loading.iter().zip(&transforming).map(|(load, transform)| load + transform);
        let most = all.max().unwrap_or(0);
        self.draw_duty(frame, load, ("load", &loading), most);
        self.draw_duty(frame, transform, ("transform", &transforming), most);
    }

    /// Draws a duty's name, its threads now and those of the last minute.
    fn draw_duty(&self, frame: &mut Frame<'_>, line: Rect, duty: (&str, &[u64]), most: u64) {
        let (name, threads) = duty;
        let text = format!("{name:<9} {:>4}  ", threads.last().unwrap_or(&0));
        let label = Constraint::Length(text.len() as u16);
        let [label, graph] = Layout::horizontal([label, Constraint::Fill(1)]).areas(line);
        let shown = &threads[threads.len().saturating_sub(graph.width.into())..];
        frame.render_widget(Line::from(text), label);
        let bars = Sparkline::default().data(shown).max(most).style(self.style(Tone::Good));
        frame.render_widget(bars, graph);
    }

    fn table(&self, view: &JobView, area: Rect) -> Table<'static> {
        let columns = fitting(columns(view), area.width.into());
        let widths = columns.iter().map(|column| Constraint::Length(column.width() as u16));
        let headings = columns.iter().map(|c| Cell::from(aligned(c, &c.heading)));
        let heading =
            Row::new(headings.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::DIM));
        let room = usize::from(area.height.saturating_sub(1));
        let all = view.rows().len();
        let first = self.top.min(all.saturating_sub(room));
        let rows = (first..all).take(room).map(|row| self.row(&columns, row));
        Table::new(rows.collect::<Vec<_>>(), widths).header(heading).column_spacing(GAP as u16)
    }

    fn row(&self, columns: &[VitalsColumn], row: usize) -> Row<'static> {
        let cell = |column: &VitalsColumn| {
            let cell = &column.cells[row];
            Cell::from(aligned(column, &cell.text)).style(self.style(cell.tone))
        };
        Row::new(columns.iter().map(cell).collect::<Vec<_>>())
    }

    fn foot(&self) -> Line<'static> {
        match &self.error {
            Some(error) => Line::from(Span::styled(error.clone(), self.style(Tone::Bad))),
            None => Line::from("q quits, arrows and page keys scroll"),
        }
    }

    fn style(&self, tone: Tone) -> Style {
        let colour = match tone {
            Tone::Plain => return Style::new(),
            Tone::Good => Color::Green,
            Tone::Warning => Color::Yellow,
            Tone::Bad => Color::Red,
        };
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Aligns words to the left and numbers to the right.
fn aligned(column: &VitalsColumn, text: &str) -> String {
    let width = column.width();
    match column.heading.as_str() {
        "state" | "host" => format!("{text:<width$}"),
        _ => format!("{text:>width$}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belady_engine::metrics::{ThreadVitals, Vitals};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::monitor::JobMonitor;
    use super::super::monitor::tests::vitals;
    use super::*;

    /// Returns a job whose last node has not published yet; the node before cannot reach it.
    fn view(nodes: usize) -> JobView {
        let mut monitor = JobMonitor::default();
        for second in 1..=20 {
            let mut all: Vec<_> =
                (0..nodes).map(|_| Some(vitals(second, second.min(10)))).collect();
            all[nodes - 1] = None;
            if let Some(Some(node)) = nodes.checked_sub(2).map(|at| all[at].as_mut()) {
                node.down = 1;
            }
            monitor.record(Duration::from_secs(second), all);
        }
        monitor.view(Duration::from_secs(20))
    }

    fn screen() -> Screen {
        Screen { place: "node0:7117".into(), top: 0, error: None, colour: true }
    }

    /// Returns the lines of a terminal of this size.
    fn drawn(screen: &Screen, view: &JobView, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
        terminal.draw(|frame| screen.draw(frame, view)).expect("in memory");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_terminal_of_80_by_24_shows_all_parts() {
        let lines = drawn(&screen(), &view(4), 80, 24);
        assert_eq!(lines[0], "3 of 4 nodes up  30.0 MB/s  stall 25.0 %  node0:7117");
        assert_eq!(lines[1], "all nodes, at most 57.0 MB/s");
        assert!(lines[2..5].iter().all(|line| line.contains('█')), "{lines:#?}");
        // Three nodes with 6 + 2 threads each.
        assert_eq!(lines[6], format!("load        18  {}", "▆".repeat(20)));
        assert_eq!(lines[7], format!("transform    6  {}", "▂".repeat(20)));
        let heading: Vec<&str> = lines[9].split_whitespace().collect();
        let headings = ["rank", "state", "rate", "stall", "source", "peers", "ram", "full"];
        assert!(headings.iter().all(|name| heading.contains(name)), "{lines:#?}");
        assert!(lines[10].starts_with("   0  up       10.0 MB/s  25.0 %"), "{}", lines[10]);
        assert!(lines[11].contains("75.0 %") && lines[11].ends_with("3/3"), "{}", lines[11]);
        assert!(lines[12].contains("75.0 %") && lines[12].ends_with("2/3"), "{}", lines[12]);
        assert!(lines[13].starts_with("   3  awaited"), "{}", lines[13]);
        assert_eq!(lines[23], "q quits, arrows and page keys scroll");
    }

    /// Returns a node with eight threads, of which so many transform in one second after another.
    fn split(transforming: &[u64]) -> JobView {
        let (mut monitor, mut view) = (JobMonitor::default(), JobView::default());
        for (second, &transforming) in (1..).zip(transforming) {
            let threads = ThreadVitals { loading: 8 - transforming, transforming };
            let node = Vitals { threads, ..vitals(second, 10) };
            monitor.record(Duration::from_secs(second), vec![Some(node)]);
            view = monitor.view(Duration::from_secs(second));
        }
        view
    }

    #[test]
    fn threads_that_move_between_duties_are_seen_to_move() {
        let lines = drawn(&screen(), &split(&[1, 1, 2, 4, 6, 7]), 80, 24);
        assert_eq!(lines[6], "load         1  ▇▇▆▄▂▁");
        assert_eq!(lines[7], "transform    7  ▁▁▂▄▆▇");
    }

    #[test]
    fn the_split_is_that_of_the_last_minute_or_of_what_the_screen_has_space_for() {
        let view = split(&[[2; 95].as_slice(), &[4; 5]].concat());
        let wide = drawn(&screen(), &view, 200, 24);
        assert_eq!(wide[7], format!("transform    4  {}{}", "▂".repeat(55), "▄".repeat(5)));
        let narrow = drawn(&screen(), &view, 24, 24);
        assert_eq!(narrow[7], "transform    4  ▂▂▂▄▄▄▄▄");
        let low = drawn(&screen(), &view, 80, 19);
        assert!(low.iter().all(|line| !line.starts_with("transform")), "{low:#?}");
        let untransformed = drawn(&screen(), &split(&[0; 20]), 80, 24);
        assert!(untransformed.iter().all(|line| !line.starts_with("load")), "{untransformed:#?}");
    }

    #[test]
    fn a_table_longer_than_the_screen_scrolls_to_its_last_node() {
        let view = view(40);
        let at = |top| drawn(&Screen { top, ..screen() }, &view, 100, 12);
        assert!(at(0)[2].starts_with("   0") && at(0)[10].starts_with("   8"));
        assert!(at(5)[2].starts_with("   5"));
        assert!(at(usize::MAX)[10].starts_with("  39"), "{:#?}", at(usize::MAX));
    }

    #[test]
    fn a_narrow_terminal_keeps_the_most_important_columns() {
        let lines = drawn(&screen(), &view(4), 40, 10);
        let heading: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(heading, ["rank", "state", "rate", "stall"], "{lines:#?}");
        assert!(lines.iter().all(|line| !line.contains('█')), "no history: {lines:#?}");
    }

    #[test]
    fn drawing_works_on_any_size_and_without_nodes() {
        for view in [view(1), view(4), JobView::default()] {
            for (width, height) in [(1, 1), (3, 2), (20, 3), (5, 30), (300, 4), (80, 16)] {
                drawn(&screen(), &view, width, height);
            }
        }
    }

    #[test]
    fn an_error_replaces_the_line_of_keys() {
        let screen = Screen { error: Some("connection refused".into()), ..screen() };
        assert_eq!(drawn(&screen, &view(4), 80, 24)[23], "connection refused");
    }

    #[test]
    fn no_colour_is_used_if_colours_are_off() {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("in memory");
        let screen = Screen { colour: false, ..screen() };
        terminal.draw(|frame| screen.draw(frame, &view(4))).expect("in memory");
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}
