//! Node lists as Slurm writes them: `gpu[01-03,7],login`, `rack[1-2]n[1-2]`.

/// A list with more hosts is a mistake: no cluster has as many.
const MOST: usize = 1 << 17;

/// Returns all hosts in order; `None` if the text is not a node list.
pub fn expand(text: &str) -> Option<Vec<String>> {
    let mut hosts = vec![];
    for entry in entries(text)? {
        hosts.extend(expand_entry(entry)?);
        if hosts.len() > MOST {
            return None;
        }
    }
    Some(hosts)
}

/// Splits at commas outside of brackets.
fn entries(text: &str) -> Option<Vec<&str>> {
    let (mut entries, mut start, mut inside) = (vec![], 0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                entries.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    entries.push(&text[start..]);
    let plausible = !inside && entries.iter().all(|entry| !entry.trim().is_empty());
    plausible.then_some(entries)
}

/// Expands a name with any number of brackets; the last one varies fastest.
fn expand_entry(entry: &str) -> Option<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = entry.trim();
    if rest.contains(char::is_whitespace) {
        return None;
    }
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after.split_once(']')?;
        let numbers = numbers(ranges)?;
        if names.len().checked_mul(numbers.len())? > MOST {
            return None;
        }
        let with = |name: &String, number: &String| format!("{name}{before}{number}");
        names = names.iter().flat_map(|name| numbers.iter().map(|it| with(name, it))).collect();
        rest = behind;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Some(names)
}

/// Expands `01-03,7`; numbers are padded to the width of the first number of their range.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = vec![];
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return None;
        }
        let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if to < from || to - from >= MOST as u64 || numbers.len() > MOST {
            return None;
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_as_slurm_writes_them() {
        let hosts = |text| expand(text).unwrap().join(" ");
        assert_eq!(hosts("alone"), "alone");
        assert_eq!(hosts("gpu[01-03,7],login"), "gpu01 gpu02 gpu03 gpu7 login");
        assert_eq!(hosts("n[8-11]"), "n8 n9 n10 n11");
        assert_eq!(hosts("n[098-101]-ib"), "n098-ib n099-ib n100-ib n101-ib");
        assert_eq!(hosts("rack[1-2]n[1-2],x"), "rack1n1 rack1n2 rack2n1 rack2n2 x");
    }

    #[test]
    fn an_invalid_list_is_none() {
        for text in ["", ",", "a,", "a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a[[1]]", "a b"] {
            assert_eq!(expand(text), None, "{text}");
        }
        assert_eq!(expand("n[0-99999999999]"), None, "too many");
        assert_eq!(expand("n[0-9999]x[0-9999]"), None, "too many");
    }

    /// An entry and the hosts that it stands for.
    fn entry() -> impl Strategy<Value = (String, Vec<String>)> {
        let bracket = prop::collection::vec((0u32..200, 0u32..4, 1usize..5), 1..3);
        prop::collection::vec(("[a-z][a-z-]{0,3}", bracket), 0..3).prop_flat_map(|parts| {
            "[a-z.]{1,3}".prop_map(move |tail| {
                let mut text = String::new();
                let mut hosts = vec![String::new()];
                for (name, ranges) in &parts {
                    let mut written = vec![];
                    let mut numbers = vec![];
                    for &(from, more, width) in ranges {
                        let to = from + more;
                        let one = more == 0;
                        let padded = |number: u32| format!("{number:0width$}");
                        written.push(if one {
                            padded(from)
                        } else {
                            format!("{}-{to}", padded(from))
                        });
                        let width = padded(from).len();
                        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
                    }
                    text = format!("{text}{name}[{}]", written.join(","));
                    let mut longer = vec![];
                    for host in &hosts {
                        for number in &numbers {
                            longer.push(format!("{host}{name}{number}"));
                        }
                    }
                    hosts = longer;
                }
                (text + &tail, hosts.into_iter().map(|host| host + &tail).collect())
            })
        })
    }

    proptest! {
        #[test]
        fn an_expanded_list_is_what_was_folded(entries in prop::collection::vec(entry(), 1..4)) {
            let text: Vec<&str> = entries.iter().map(|(text, _)| text.as_str()).collect();
            let hosts: Vec<String> = entries.iter().flat_map(|(_, hosts)| hosts.clone()).collect();
            prop_assert_eq!(expand(&text.join(",")), Some(hosts));
        }

        #[test]
        fn parsing_any_text_ends(text in "[a-c0-9,\\[\\] -]{0,24}") {
            if let Some(hosts) = expand(&text) {
                prop_assert!(hosts.iter().all(|host| !host.is_empty() && !host.contains(['[', ',', ' '])));
            }
        }
    }
}
