//! Serves metrics on a port: `GET /metrics`, for clients with the token.
//!
//! One thread serves one request at a time. A scraper asks every few seconds, so more threads would
//! gain nothing. A request has a limit of size and time, so no client can block the thread. Clients
//! can read the metrics and change nothing.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_base::fork::OwnDescriptor;
use belady_base::sync::Arc;
use belady_base::sync::atomic::{AtomicBool, Ordering};
use subtle::ConstantTimeEq as _;

use super::{Metrics, exposition};

/// The largest request head; scrapers send a few hundred bytes.
const MOST_BYTES: usize = 8 << 10;
/// The most headers in a request.
const MOST_HEADERS: usize = 64;
/// For a request and its answer together, since scrapers are near and fast.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Between attempts to accept while the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// A clone of the listening socket, to wake the thread that waits on it.
    listening: OwnDescriptor<TcpStream>,
    thread: Option<JoinHandle<()>>,
}

/// Serves an engine's metrics at `http://ADDRESS/metrics` to clients that send
/// `Authorization: Bearer TOKEN`.
///
/// # Errors
/// Fails if the token cannot be sent in a header, or the address cannot be bound.
pub fn serve(
    address: impl ToSocketAddrs,
    token: &str,
    metrics: Arc<Metrics>,
) -> io::Result<MetricsServer> {
    serve_text(address, token, move || exposition::text(&metrics.snapshot()))
}

/// Serves the text that `figures` returns, in the same way.
///
/// # Errors
/// As [`serve`].
pub fn serve_text(
    address: impl ToSocketAddrs,
    token: &str,
    figures: impl Fn() -> String + Send + 'static,
) -> io::Result<MetricsServer> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "the metrics token must be printable ASCII without spaces, and not empty";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let listener = OwnDescriptor::of(TcpListener::bind(address)?)?;
    let address = listener.local_addr()?;
    let listening = OwnDescriptor::of(TcpStream::from(OwnedFd::from(listener.try_clone()?)))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, token) = (Arc::clone(&stop), token.to_owned());
    let thread = std::thread::Builder::new()
        .name("belady-metrics".to_owned())
        .spawn(move || answer_all(&listener, &token, &figures, &stopped))?;
    Ok(MetricsServer { address, stop, listening, thread: Some(thread) })
}

impl MetricsServer {
    /// Returns the address it listens on, with the port that was chosen for port 0.
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
            // A client that has gone needs no answer.
            Ok((stream, _)) => drop(answer(&stream, token, figures)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(stream: &TcpStream, token: &str, figures: &dyn Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + TIME_LIMIT;
    let reply = match read_head(stream, deadline) {
        Ok(head) => reply_to(&head, token),
        Err(HeadError::Gone) => return Ok(()),
        Err(HeadError::Answer(reply)) => reply,
    };
    let body = match reply {
        HttpReply::Figures => figures(),
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
enum HttpReply {
    Figures,
    Malformed,
    Unauthorized,
    NotFound,
    NotAllowed,
    TooSlow,
    TooLarge,
}

impl HttpReply {
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

enum HeadError {
    Answer(HttpReply),
    /// The client has closed the connection.
    Gone,
}

/// Reads up to the empty line that ends a request's head.
fn read_head(mut stream: &TcpStream, deadline: Instant) -> Result<Vec<u8>, HeadError> {
    let mut head = vec![];
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MOST_BYTES {
            return Err(HeadError::Answer(HttpReply::TooLarge));
        }
        let left = time_left(deadline).ok_or(HeadError::Answer(HttpReply::TooSlow))?;
        stream.set_read_timeout(Some(left)).map_err(|_| HeadError::Gone)?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(HeadError::Gone),
            Ok(read) => head.extend_from_slice(&piece[..read]),
            Err(error) if is_timeout(&error) => return Err(HeadError::Answer(HttpReply::TooSlow)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(HeadError::Gone),
        }
    }
    Ok(head)
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        // A late request is still answered: what fits the socket's buffer takes no time.
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

/// Returns the time until a deadline; `None` when it is over, because a socket has no zero timeout.
fn time_left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Decides the reply to a request. Checks the token first: without it, a client cannot even learn
/// which paths exist.
fn reply_to(head: &[u8], token: &str) -> HttpReply {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return HttpReply::TooLarge,
        Ok(httparse::Status::Partial) | Err(_) => return HttpReply::Malformed,
    }
    let is_authorization =
        |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("authorization");
    let given = (request.headers.iter().find(is_authorization))
        .and_then(|header| str::from_utf8(header.value).ok())
        .and_then(|value| value.trim().split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // In constant time, so that a token cannot be guessed byte by byte.
    let is_token = |given: &str| bool::from(given.trim().as_bytes().ct_eq(token.as_bytes()));
    if !given.is_some_and(|(_, given)| is_token(given)) {
        return HttpReply::Unauthorized;
    }
    let path = request.path.and_then(|path| path.split('?').next());
    match (request.method, path) {
        (Some("GET"), Some("/metrics")) => HttpReply::Figures,
        (Some("GET"), _) => HttpReply::NotFound,
        _ => HttpReply::NotAllowed,
    }
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
    fn a_client_with_the_token_gets_the_metrics() {
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
    fn a_client_without_the_token_gets_nothing() {
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
    fn only_get_of_the_metrics_is_answered() {
        let server = server();
        assert!(get(&server, "/", TOKEN).starts_with("HTTP/1.1 404 "));
        assert!(get(&server, "/metrics?a=b", TOKEN).starts_with("HTTP/1.1 200 "));
        let post = exchange(&server, &format!("POST /metrics HTTP/1.1\r\n{TOKEN}\r\n"));
        assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
        assert!(exchange(&server, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn large_and_slow_requests_are_refused_and_the_next_is_served() {
        let server = server();
        let large = exchange(&server, &"x".repeat(MOST_BYTES));
        assert!(large.starts_with("HTTP/1.1 431 "), "{large}");
        let many = "X: y\r\n".repeat(MOST_HEADERS + 1);
        assert!(get(&server, "/metrics", &many).starts_with("HTTP/1.1 431 "));
        let slow = exchange(&server, "GET /metrics HTTP/1.1\r\n");
        assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
        drop(TcpStream::connect(server.address()).expect("it listens"));
        assert!(get(&server, "/metrics", TOKEN).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn a_dropped_server_frees_its_port() {
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
