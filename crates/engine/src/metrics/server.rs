//! The metrics on a port: `GET /metrics`, for whoever has the token.
//!
//! One thread serves one request at a time. A scraper asks every few seconds, so there is
//! nothing to gain from more; and as a request has a limit of size and time, nobody can
//! hold the thread. Nothing but the figures can be had, and nothing can be changed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_data::fork::Own;
use belady_data::sync::Arc;
use belady_data::sync::atomic::{AtomicBool, Ordering};

use super::{Metrics, exposition};

/// Scrapers send a few hundred bytes.
const MOST_BYTES: usize = 8 << 10;
/// For a request and its answer together; scrapers are near and fast.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Between attempts to accept while the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// The listening socket once more, to wake the thread that waits on it.
    listening: Own<TcpStream>,
    thread: Option<JoinHandle<()>>,
}

/// Offers an engine's metrics at `http://ADDRESS/metrics` to those who send
/// `Authorization: Bearer TOKEN`.
pub fn serve(
    address: impl ToSocketAddrs,
    token: &str,
    metrics: Arc<Metrics>,
) -> io::Result<MetricsServer> {
    serve_text(address, token, move || exposition::text(&metrics.snapshot()))
}

/// The same for anything that [`exposition::Text`] was written of.
pub fn serve_text(
    address: impl ToSocketAddrs,
    token: &str,
    figures: impl Fn() -> String + Send + 'static,
) -> io::Result<MetricsServer> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "the metrics token must be printable ASCII without blanks, and not empty";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let listener = Own::of(TcpListener::bind(address)?)?;
    let address = listener.local_addr()?;
    let listening = Own::of(TcpStream::from(OwnedFd::from(listener.try_clone()?)))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, token) = (Arc::clone(&stop), token.to_owned());
    let thread = std::thread::Builder::new()
        .name("belady-metrics".to_owned())
        .spawn(move || answer_all(&listener, &token, &figures, &stopped))?;
    Ok(MetricsServer { address, stop, listening, thread: Some(thread) })
}

impl MetricsServer {
    /// Where it listens; tells the port if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Linux ends a waiting `accept` when its socket is shut down.
        let _ = self.listening.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer_all(
    listener: &TcpListener,
    token: &str,
    figures: &dyn Fn() -> String,
    stop: &AtomicBool,
) {
    loop {
        let accepted = listener.accept();
        if stop.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            // Who went away in the middle gets no answer and needs none.
            Ok((stream, _)) => drop(answer(&stream, token, figures)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(stream: &TcpStream, token: &str, figures: &dyn Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + TIME_LIMIT;
    let reply = match read_head(stream, deadline) {
        Ok(head) => judge(&head, token),
        Err(Refusal::Gone) => return Ok(()),
        Err(Refusal::Answer(reply)) => reply,
    };
    let body = match reply {
        Reply::Figures => figures(),
        other => format!("{}\n", other.status()),
    };
    let message = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n{body}",
        reply.status(),
        exposition::CONTENT_TYPE,
        body.len(),
        reply.header(),
    );
    write_all(stream, message.as_bytes(), deadline)?;
    stream.shutdown(Shutdown::Write)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Figures,
    Malformed,
    Unauthorized,
    NotFound,
    NotAllowed,
    TooSlow,
    TooLarge,
}

impl Reply {
    fn status(self) -> &'static str {
        match self {
            Self::Figures => "200 OK",
            Self::Malformed => "400 Bad Request",
            Self::Unauthorized => "401 Unauthorized",
            Self::NotFound => "404 Not Found",
            Self::NotAllowed => "405 Method Not Allowed",
            Self::TooSlow => "408 Request Timeout",
            Self::TooLarge => "431 Request Header Fields Too Large",
        }
    }

    fn header(self) -> &'static str {
        match self {
            Self::Unauthorized => "WWW-Authenticate: Bearer\r\n",
            Self::NotAllowed => "Allow: GET\r\n",
            _ => "",
        }
    }
}

enum Refusal {
    Answer(Reply),
    /// The other side closed.
    Gone,
}

/// Everything up to the empty line that ends a request's head.
fn read_head(mut stream: &TcpStream, deadline: Instant) -> Result<String, Refusal> {
    let mut head = vec![];
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MOST_BYTES {
            return Err(Refusal::Answer(Reply::TooLarge));
        }
        let left = time_left(deadline).ok_or(Refusal::Answer(Reply::TooSlow))?;
        stream.set_read_timeout(Some(left)).map_err(|_| Refusal::Gone)?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(Refusal::Gone),
            Ok(read) => head.extend_from_slice(&piece[..read]),
            Err(error) if is_timeout(&error) => return Err(Refusal::Answer(Reply::TooSlow)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Refusal::Gone),
        }
    }
    String::from_utf8(head).map_err(|_| Refusal::Answer(Reply::Malformed))
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        // A late request is still told so: what fits the socket's buffer costs no time.
        let left = time_left(deadline).unwrap_or(Duration::from_millis(1));
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `None` when it is over; the system takes no timeout of zero.
fn time_left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The token comes first: without it, not even what exists can be learned.
fn judge(head: &str, token: &str) -> Reply {
    let mut lines = head.split("\r\n");
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) =
        (request.next(), request.next(), request.next())
    else {
        return Reply::Malformed;
    };
    if !version.starts_with("HTTP/1.") {
        return Reply::Malformed;
    }
    let given = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        .and_then(|(_, value)| value.trim().split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    if !given.is_some_and(|(_, given)| equal(given.trim().as_bytes(), token.as_bytes())) {
        return Reply::Unauthorized;
    }
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => Reply::Figures,
        ("GET", _) => Reply::NotFound,
        _ => Reply::NotAllowed,
    }
}

/// Takes as long wherever the first difference is, so that a token cannot be guessed byte
/// by byte from how long the answer takes.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differing =
        one.iter().zip(other).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    one.len() == other.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Served;

    fn server() -> MetricsServer {
        let metrics = Metrics::new(&["ram".to_owned()]);
        metrics.loaded(Served::Tier(1), 5, 77);
        serve("127.0.0.1:0", "open-sesame", Arc::new(metrics)).expect("a free port")
    }

    fn exchange(server: &MetricsServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.write_all(request.as_bytes()).expect("a short request");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("an answer and its end");
        reply
    }

    fn get(server: &MetricsServer, path: &str, headers: &str) -> String {
        exchange(server, &format!("GET {path} HTTP/1.1\r\nHost: here\r\n{headers}\r\n"))
    }

    const TOKEN: &str = "Authorization: Bearer open-sesame\r\n";

    #[test]
    fn figures_for_the_token() {
        let server = server();
        for headers in [TOKEN, "authorization:  bearer  open-sesame \r\n"] {
            let reply = get(&server, "/metrics", headers);
            let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            assert!(
                body.contains("belady_loaded_bytes_total{location=\"tier\",tier=\"ram\"} 77\n")
            );
        }
    }

    #[test]
    fn nothing_without_the_token() {
        let server = server();
        for headers in [
            "",
            "Authorization: Bearer\r\n",
            "Authorization: Bearer open-sesam\r\n",
            "Authorization: Bearer open-sesame2\r\n",
            "Authorization: Bearer Open-sesame\r\n",
            "Authorization: Basic open-sesame\r\n",
            "X: open-sesame\r\n",
        ] {
            for path in ["/metrics", "/elsewhere"] {
                let reply = get(&server, path, headers);
                assert!(reply.starts_with("HTTP/1.1 401 "), "{headers}: {reply}");
                assert!(reply.contains("\r\nWWW-Authenticate: Bearer\r\n"));
                assert!(!reply.contains("belady_"));
            }
        }
    }

    #[test]
    fn only_get_and_only_metrics() {
        let server = server();
        assert!(get(&server, "/", TOKEN).starts_with("HTTP/1.1 404 "));
        assert!(get(&server, "/metrics?a=b", TOKEN).starts_with("HTTP/1.1 200 "));
        let post = exchange(&server, &format!("POST /metrics HTTP/1.1\r\n{TOKEN}\r\n"));
        assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
        assert!(exchange(&server, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn too_much_and_too_slow_are_refused_and_the_next_is_served() {
        let server = server();
        let large = exchange(&server, &"x".repeat(MOST_BYTES));
        assert!(large.starts_with("HTTP/1.1 431 "), "{large}");
        let slow = exchange(&server, "GET /metrics HTTP/1.1\r\n");
        assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
        drop(TcpStream::connect(server.address()).expect("it listens"));
        assert!(get(&server, "/metrics", TOKEN).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn a_dropped_server_gives_its_port_back() {
        let server = server();
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
        let metrics = Arc::new(Metrics::new(&[]));
        drop(serve(address, "t", metrics).expect("the port is free again"));
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_refused() {
        for token in ["", "two words", "line\nbreak", "é"] {
            let refused = serve("127.0.0.1:0", token, Arc::new(Metrics::new(&[])));
            assert_eq!(refused.map(drop).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
