//! Runs the commands in the documentation.
//!
//! In a `sh` block, every line that starts with `belady` is run in a folder that has the
//! repository's
//! `scenarios` and a small dataset, `photos`. A `make` line must name an existing target. A `text`
//! block that follows the commands must be their output. After an intended change, run:
//!
//! ```sh
//! UPDATE_DOCS=1 cargo test -p belady --test readme
//! ```
#![cfg(unix)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCUMENTS: [&str; 11] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/engine.md",
    "docs/model.md",
    "docs/policies.md",
    "docs/reading.md",
    "docs/scenarios.md",
    "docs/simulator.md",
    "docs/validation-details.md",
    "docs/validation.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Prose or a fenced block.
struct Block {
    /// `None` for prose.
    language: Option<String>,
    lines: Vec<String>,
    first_line: usize,
}

fn blocks(text: &str) -> Vec<Block> {
    let block = |language, first_line| Block { language, lines: vec![], first_line };
    let mut blocks = vec![block(None, 1)];
    for (index, line) in text.lines().enumerate() {
        let fenced = blocks.last().is_some_and(|block| block.language.is_some());
        match line.strip_prefix("```") {
            Some(_) if fenced => blocks.push(block(None, index + 2)),
            Some(language) => blocks.push(block(Some(language.to_owned()), index + 2)),
            None => blocks.last_mut().expect("never empty").lines.push(line.to_owned()),
        }
    }
    blocks
}

fn to_text(blocks: &[Block]) -> String {
    let mut text = String::new();
    for block in blocks {
        let fence = |text: &mut String, language: &str| {
            if block.language.is_some() {
                let _ = writeln!(text, "```{language}");
            }
        };
        fence(&mut text, block.language.as_deref().unwrap_or_default());
        for line in &block.lines {
            let _ = writeln!(text, "{line}");
        }
        fence(&mut text, "");
    }
    text
}

/// Returns the lines of a block, joined where they end in a backslash.
fn commands(block: &Block) -> Vec<String> {
    block.lines.join("\n").replace("\\\n", "").lines().map(str::to_owned).collect()
}

fn run(command: &str, folder: &Path, at: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_belady"));
    let mut path = vec![binary.parent().expect("a folder").to_owned()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(folder)
        .env("PATH", std::env::join_paths(path).expect("a search path"))
        .env("BELADY_SNAPSHOTS", folder.join("snapshots"))
        .output()
        .expect("sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{at}: `{command}` failed: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs the commands of a block and returns their output; `None` if it has no commands.
fn run_block(block: &Block, makefile: &str, folder: &Path, at: &str) -> Option<String> {
    let mut printed = None;
    for command in commands(block) {
        if command.starts_with("belady ") {
            printed.get_or_insert_with(String::new).push_str(&run(&command, folder, at));
        } else if let Some(rest) = command.strip_prefix("make ") {
            let target = rest.split_whitespace().next().unwrap_or_default();
            let known = makefile.contains(&format!("\n{target}:"));
            assert!(known, "{at}: the Makefile has no target `{target}`");
        }
    }
    printed
}

/// Writes sixty files of 2 to 40 KB into three class folders.
fn write_photos(folder: &Path) {
    for at in 0..60_usize {
        let class = folder.join(["cat", "dog", "owl"][at % 3]);
        std::fs::create_dir_all(&class).expect("a class folder");
        let size = 2000 + at * at * 38_000 / (59 * 59);
        std::fs::write(class.join(format!("{at:02}.jpg")), vec![at as u8; size]).expect("a file");
    }
}

#[test]
fn documented_commands_run_and_print_what_is_shown() {
    let makefile = read(&root().join("Makefile"));
    // Commands may write files, so they do not run in the repository.
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::symlink(root().join("scenarios"), folder.path().join("scenarios"))
        .expect("a link to the scenarios");
    write_photos(&folder.path().join("photos"));
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    let mut compared = 0;
    for document in DOCUMENTS {
        let path = root().join(document);
        let mut blocks = blocks(&read(&path));
        let mut printed = None;
        for block in &mut blocks {
            let at = format!("{document}:{}", block.first_line);
            match block.language.as_deref() {
                Some("sh") => printed = run_block(block, &makefile, folder.path(), &at),
                Some("text") => {
                    let Some(text): Option<String> = printed.take() else { continue };
                    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
                    compared += 1;
                    if update {
                        block.lines = lines.into_iter().map(str::to_owned).collect();
                    } else {
                        assert_eq!(
                            block.lines, lines,
                            "{at} shows something else than the command prints; \
                             `UPDATE_DOCS=1 cargo test -p belady --test readme` mends it"
                        );
                    }
                }
                // Output follows its command directly.
                None if block.lines.iter().all(|line| line.trim().is_empty()) => {}
                _ => printed = None,
            }
        }
        if update {
            std::fs::write(&path, to_text(&blocks)).expect(document);
        }
    }
    assert!(compared > 3, "only {compared} outputs were found: have the blocks changed form?");
}

/// Returns the anchors of a document's headings, as code hosts make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = blocks(text).into_iter().filter(|block| block.language.is_none());
    let lines = headings.flat_map(|block| block.lines).filter(|line| line.starts_with('#'));
    lines
        .map(|line| {
            // A link counts by its text.
            let title = line.trim_start_matches('#').trim().replace('[', "");
            let title = title.split("](").next().unwrap_or_default().to_lowercase();
            let kept = title.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Returns every Markdown file at the root and under docs, bench and .github.
fn documents() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs"), root().join("bench"), root().join(".github")];
    let mut found = markdown_in(&root(), &mut vec![]);
    while let Some(folder) = folders.pop() {
        found.extend(markdown_in(&folder, &mut folders));
    }
    found
}

fn markdown_in(folder: &Path, folders: &mut Vec<PathBuf>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of the repository");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let (below, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    folders.extend(below);
    files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

#[test]
fn relative_links_in_markdown_lead_to_files_and_headings_that_exist() {
    let documents = documents();
    assert!(documents.len() > DOCUMENTS.len(), "only {documents:?} were found");
    for path in documents {
        let document = path.strip_prefix(root()).expect("below the root").display().to_string();
        let text = read(&path);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let there =
                if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            assert!(there.exists(), "{document} links to {target}, which does not exist");
            assert!(
                anchor.is_empty() || anchors(&read(&there)).iter().any(|known| known == anchor),
                "{document} links to {target}, but no heading there is called so"
            );
        }
    }
}
