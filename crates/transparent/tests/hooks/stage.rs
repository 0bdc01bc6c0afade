//! A fixture: a dataset, a level with copies, a board, and programs to run with and without the
//! shim.

use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use belady_board::message::ShimMessage;
use belady_board::{
    Attach, Board, BoardConfig, BoardLevelConfig, BoardPublisher, FileId, FileStat, NewRecord,
    RecordKind, RecordRef, Revalidate, VARIABLE,
};
use belady_transparent::library;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, OFlags};
use tempfile::TempDir;

pub struct Stage {
    pub base: TempDir,
    pub board: Arc<Board>,
    publisher: BoardPublisher,
    board_file: OwnedFd,
    pipe: OwnedFd,
    messages: fs::File,
    pub library: PathBuf,
}

/// A message that the launcher received.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Received {
    Want(String),
    Dropped,
}

impl Stage {
    /// Creates the dataset `base/data`, which `base/given` links to.
    pub fn new(revalidate: Revalidate) -> Self {
        let base = tempfile::tempdir().unwrap();
        make_tree(base.path());
        let files = base.path().canonicalize().unwrap().join("level/set/files");
        fs::create_dir_all(&files).unwrap();
        fs::set_permissions(base.path().join("level"), fs::Permissions::from_mode(0o700)).unwrap();
        let root = base.path().canonicalize().unwrap();
        let config = BoardConfig {
            given: root.join("given").as_os_str().as_bytes().to_vec(),
            real: root.join("data").as_os_str().as_bytes().to_vec(),
            levels: vec![BoardLevelConfig {
                files: files.as_os_str().as_bytes().to_vec(),
                dev: fs::metadata(&files).unwrap().dev(),
            }],
            revalidate,
            records_log2: 10,
        };
        let (board, board_file) = Board::create(&config).unwrap();
        let board = Arc::new(board);
        let (messages, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&messages, OFlags::NONBLOCK).unwrap();
        let library = library::install(&[&base.path().join("library")]).unwrap();
        let publisher = BoardPublisher::new(Arc::clone(&board));
        Self { base, board, publisher, board_file, pipe, messages: messages.into(), library }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.path().canonicalize().unwrap().join(name)
    }

    pub fn source(&self, name: &str) -> PathBuf {
        self.path("data").join(name)
    }

    /// Puts a copy with other bytes on the level and publishes it.
    pub fn copy(&mut self, name: &str, is_validated: bool) {
        let source = self.source(name);
        let copy = self.path("level/set/files").join(name);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        let bytes = fs::read_to_string(&source).unwrap().replace("source", "copied");
        fs::write(&copy, bytes).unwrap();
        let name_of_source = std::ffi::CString::new(source.as_os_str().as_bytes()).unwrap();
        let stat = FileStat::of(CWD, &name_of_source, AtFlags::empty()).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(stat.mode & 0o777 | 0o1000)).unwrap();
        let of_copy = fs::metadata(&copy).unwrap();
        let new = NewRecord {
            path: self.board.key(name.as_bytes()),
            kind: RecordKind::Copy {
                level: 0,
                copy: FileId { dev: of_copy.dev(), ino: of_copy.ino() },
            },
            stat,
            is_link: fs::symlink_metadata(&source).unwrap().is_symlink(),
            validated: is_validated.then(|| self.board.change_snapshot()),
        };
        self.publisher.publish(&new).unwrap();
    }

    pub fn refuse(&mut self, name: &str) {
        let path = self.board.key(name.as_bytes());
        let new = NewRecord {
            path,
            kind: RecordKind::Refused,
            stat: FileStat::default(),
            is_link: false,
            validated: None,
        };
        self.publisher.publish(&new).unwrap();
    }

    pub fn entry(&self, name: &str) -> Option<RecordRef<'_>> {
        self.board.find(self.board.key(name.as_bytes()))
    }

    pub fn attach(&self) -> String {
        Attach::new(&self.board, &self.board_file, &self.pipe).to_text()
    }

    /// Returns the messages since the last call.
    pub fn received(&mut self) -> Vec<Received> {
        let mut bytes = vec![];
        let _ = self.messages.read_to_end(&mut bytes);
        let mut received = vec![];
        let mut rest = &bytes[..];
        while let Some((message, length)) = ShimMessage::decode(rest) {
            rest = &rest[length..];
            received.push(match message {
                ShimMessage::Want(name) => {
                    Received::Want(String::from_utf8_lossy(name).into_owned())
                }
                ShimMessage::Dropped => Received::Dropped,
            });
        }
        assert!(rest.is_empty());
        received
    }

    /// Returns what the probe prints without the shim.
    pub fn native(&self, part: &str) -> String {
        output(&mut self.command(&probe(self.base.path()), part))
    }

    /// Returns what the probe prints with the shim.
    pub fn preloaded(&self, part: &str) -> String {
        let mut command = self.command(&probe(self.base.path()), part);
        output(command.env("LD_PRELOAD", &self.library).env(VARIABLE, self.attach()))
    }

    pub fn command(&self, probe: &Path, part: &str) -> Command {
        let mut command = Command::new(probe);
        command.arg(self.path("given")).arg(self.path("data")).arg(part);
        command
    }
}

pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {errors}\n{text}", output.status);
    assert_eq!(errors, "");
    text
}

fn make_tree(base: &Path) {
    let data = base.join("data");
    for directory in ["sub", "other"] {
        fs::create_dir_all(data.join(directory)).unwrap();
    }
    for name in ["plain", "nocopy", "secret", "sub/deep", "other/deep"] {
        fs::write(data.join(name), format!("source of {name}")).unwrap();
    }
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(data.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("plain", data.join("link")).unwrap();
    symlink("sub", data.join("sublink")).unwrap();
    symlink("loop", data.join("loop")).unwrap();
    symlink("data", base.join("given")).unwrap();
    symlink("data/sub/deep", base.join("alias")).unwrap();
    fs::create_dir(base.join("data-neighbour")).unwrap();
    fs::write(base.join("data-neighbour/plain"), "source next door").unwrap();
}

/// Compiles the C program into this directory, unless it exists.
pub fn probe(directory: &Path) -> PathBuf {
    let program = directory.join("probe");
    if !program.exists() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks");
        let sources = ["probe.c", "reads.c", "changes.c", "special.c"].map(|name| here.join(name));
        compile(
            Command::new("cc")
                .arg("-O1")
                .arg("-o")
                .arg(&program)
                .args(sources)
                .args(["-Wall", "-Wextra", "-Werror", "-pthread", "-ldl"]),
        );
    }
    program
}

pub fn compile(command: &mut Command) {
    let output = command.output().expect("Rust needs a C compiler to link");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
