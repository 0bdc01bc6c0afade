//! Whether all ranks run the same job. Each tells the facts that must be the same everywhere; all get
//! the same sentence about what differs.
//!
//! A rank that cannot take part says why in the place of what it should give ([`share`]): the others
//! are told at once, and do not wait for it until the time limit.

use crate::key::random;
use crate::meet::LONGEST_VALUE;
use crate::{Meet, MeetError, NodeId};

/// The first byte of what a rank shares: something follows, or a sentence about why nothing does.
const GIVES: u8 = 0;
const REFUSES: u8 = 1;

/// Longer values are cut off in a sentence.
const SHOWN: usize = 80;
/// A sentence is no longer.
const SENTENCE: usize = 4096;
/// More values than this are counted, not shown.
const GROUPS: usize = 4;

/// Gives something and gets what all gave, by rank. If a rank refuses, since it cannot go on or has
/// more to give than a meeting carries, all get the same sentence.
pub fn share(
    meet: &dyn Meet,
    what: &str,
    mine: Result<&[u8], &str>,
) -> Result<Vec<Vec<u8>>, MeetError> {
    let mine = match mine {
        Ok(value) if value.len() < LONGEST_VALUE => [&[GIVES], value].concat(),
        Ok(value) => refusal(&format!(
            "what it has to give to {what} has {} bytes, of which a meeting carries {}",
            value.len(),
            LONGEST_VALUE - 1
        )),
        Err(why) => refusal(why),
    };
    let read = |(rank, given): (NodeId, Vec<u8>)| match given.split_first() {
        Some((&GIVES, value)) => Ok(value.to_vec()),
        Some((&REFUSES, why)) => {
            let why = String::from_utf8_lossy(why).replace(char::is_control, "?");
            Err(MeetError::Other(format!("rank {rank} cannot take part: {why}")))
        }
        _ => Err(MeetError::Other(format!(
            "rank {rank} does not say what this one does: run the same version of belady everywhere"
        ))),
    };
    (0..).zip(meet.exchange(what, &mine)?).map(read).collect()
}

fn refusal(why: &str) -> Vec<u8> {
    let mut refusal = vec![REFUSES];
    refusal.extend(why.chars().take(SENTENCE).collect::<String>().as_bytes());
    refusal
}

/// Makes sure that all ranks have the same facts: names and values.
pub fn agree(meet: &dyn Meet, what: &str, facts: &[(&str, String)]) -> Result<(), MeetError> {
    agree_if_able(meet, what, Ok(facts))
}

/// As [`agree`], where this rank may have to say why it cannot take part.
pub fn agree_if_able(
    meet: &dyn Meet,
    what: &str,
    facts: Result<&[(&str, String)], &str>,
) -> Result<(), MeetError> {
    let mine = facts.map(|facts| {
        let mut mine = vec![];
        for text in facts.iter().flat_map(|(name, value)| [*name, value]) {
            mine.extend((text.len() as u64).to_le_bytes());
            mine.extend(text.as_bytes());
        }
        mine
    });
    let mine = mine.as_deref().map_err(|why| *why);
    let all = share(meet, what, mine)?;
    let all: Vec<Vec<(String, String)>> = all.iter().map(|facts| read(facts)).collect();
    match difference(&all) {
        None => Ok(()),
        Some(difference) => Err(MeetError::Other(format!("the ranks disagree: {difference}"))),
    }
}

/// The seed of the job: what all were given, or one that rank 0 draws if nobody was given one.
pub fn common_seed(meet: &dyn Meet, given: Option<u64>) -> Result<u64, MeetError> {
    let fact = given.map_or_else(|| "none".to_owned(), |seed| seed.to_string());
    agree(meet, "seed, as given", &[("seed", fact)])?;
    if let Some(seed) = given {
        return Ok(seed);
    }
    let drawn = drawn(meet, "seed", || {
        // Half of the range: what is drawn is a number in every language.
        let seed = u64::from_le_bytes(random()?) >> 1;
        Ok(seed.to_le_bytes().to_vec())
    })?;
    let seed = drawn.try_into().map_err(|_| MeetError::Other("rank 0 has drawn no seed".into()))?;
    Ok(u64::from_le_bytes(seed))
}

/// What rank 0 draws, and all use. If rank 0 has been started again, what the others use is it.
pub(crate) fn drawn(
    meet: &dyn Meet,
    name: &str,
    draw: impl FnOnce() -> Result<Vec<u8>, crate::key::KeyError>,
) -> Result<Vec<u8>, MeetError> {
    let fresh = || draw().map_err(|error| MeetError::Other(error.to_string()));
    let is_first = meet.world().rank == 0;
    let mine = if is_first { fresh()? } else { vec![] };
    let drawn = meet.broadcast(name, &mine)?;
    let as_used = format!("{name}, as used");
    let all = meet.exchange(&as_used, &drawn)?;
    match all.get(1) {
        Some(theirs) if is_first && *theirs != drawn => {
            let theirs = theirs.clone();
            meet.broadcast(name, &theirs)?;
            meet.exchange(&as_used, &theirs)?;
            Ok(theirs)
        }
        _ => Ok(drawn),
    }
}

/// Facts of one rank. What cannot be read is no fact, which shows as a difference.
fn read(mut bytes: &[u8]) -> Vec<(String, String)> {
    let mut next = || {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    std::iter::from_fn(|| Some((next()?, next()?))).collect()
}

/// What differs, if anything does: a function of what all said, so the same on every rank.
fn difference(all: &[Vec<(String, String)>]) -> Option<String> {
    let mut names: Vec<&str> = vec![];
    for (name, _) in all.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let differences: Vec<String> =
        names.iter().filter_map(|name| difference_in(name, all)).collect();
    (!differences.is_empty()).then(|| differences.join("; "))
}

fn difference_in(name: &str, all: &[Vec<(String, String)>]) -> Option<String> {
    let value = |facts: &Vec<(String, String)>| {
        facts.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    // In the order in which they first come.
    let mut groups: Vec<(Option<String>, Vec<NodeId>)> = vec![];
    for (rank, facts) in (0..).zip(all) {
        let value = value(facts);
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((value, vec![rank])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    // The exceptions first.
    groups.sort_by_key(|(_, ranks)| ranks.len());
    let has = |(value, ranks): &(Option<String>, Vec<NodeId>)| {
        let verb = if ranks.len() == 1 { "has" } else { "have" };
        format!("{} {verb} {}", runs(ranks), shown(name, value.as_deref()))
    };
    let (most, others) = groups.split_last()?;
    let mut parts: Vec<String> = others.iter().take(GROUPS - 1).map(has).collect();
    if others.len() > parts.len() {
        parts.push(format!("there are {} more values of it", others.len() - parts.len()));
    }
    // Two halves have no rest.
    let is_rest = most.1.len() > 1 && most.1.len() > others.iter().map(|(_, it)| it.len()).sum();
    parts.push(match &most.0 {
        Some(value) if is_rest => format!("all others {}", cut(value)),
        _ if is_rest => "all others none".to_owned(),
        _ => has(most),
    });
    Some(parts.join(", "))
}

fn shown(name: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{name} {}", cut(value)),
        None => format!("no {name}"),
    }
}

/// What others say is not ours to trust with a terminal, or a whole log.
fn cut(value: &str) -> String {
    let clean = value.chars().map(|it| if it.is_control() { '?' } else { it });
    let mut text: String = clean.take(SHOWN).collect();
    if value.chars().count() > SHOWN {
        text.push_str("...");
    }
    text
}

/// `ranks 0-3, 7`.
fn runs(ranks: &[NodeId]) -> String {
    let mut runs: Vec<(NodeId, NodeId)> = vec![];
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(NodeId, NodeId)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let mut shown: Vec<String> = runs.iter().take(SHOWN / 8).map(run).collect();
    if runs.len() > shown.len() {
        shown.push("...".to_owned());
    }
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::meet::Hall;

    /// What `work` gives on every rank.
    fn on_all<T: Send>(size: u32, work: impl Fn(&dyn Meet) -> T + Sync) -> Vec<T> {
        let hall = Hall::new(size, Duration::from_mins(1));
        on_ranks(&hall, 0..size, work)
    }

    fn on_ranks<T: Send>(
        hall: &std::sync::Arc<Hall>,
        ranks: impl IntoIterator<Item = u32>,
        work: impl Fn(&dyn Meet) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let spawn = |rank| scope.spawn(move || work(&*hall.seat(rank)));
            let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn sentence(values: &[&str]) -> String {
        let outcomes = on_all(values.len() as u32, |meet| {
            let value = values[meet.world().rank as usize].to_owned();
            agree(meet, "job", &[("order", "torch".to_owned()), ("seed", value)])
        });
        let sentences: Vec<_> =
            outcomes.into_iter().map(|it| it.unwrap_err().to_string()).collect();
        assert!(sentences.iter().all(|sentence| *sentence == sentences[0]), "{sentences:?}");
        sentences[0].clone()
    }

    #[test]
    fn everybody_is_told_the_same_about_what_differs() {
        assert_eq!(
            sentence(&["5", "5", "5", "7"]),
            "the ranks disagree: rank 3 has seed 7, all others 5"
        );
        assert_eq!(
            sentence(&["5", "7"]),
            "the ranks disagree: rank 0 has seed 5, rank 1 has seed 7"
        );
        assert_eq!(
            sentence(&["5", "7", "7", "5"]),
            "the ranks disagree: ranks 0, 3 have seed 5, ranks 1-2 have seed 7"
        );
        let many = sentence(&["1", "2", "3", "4", "5", "6", "6", "6", "6", "6", "6"]);
        assert!(many.ends_with("there are 2 more values of it, all others 6"), "{many}");
        let long = sentence(&["5", &"\u{1b}x".repeat(500)]);
        assert!(long.len() < 300 && !long.contains('\u{1b}'), "{long}");
    }

    #[test]
    fn a_fact_that_some_do_not_have_differs() {
        let outcomes = on_all(3, |meet| {
            let facts = [("tiers", "ram".to_owned()), ("tls", "yes".to_owned())];
            agree(meet, "job", &facts[..if meet.world().rank == 2 { 1 } else { 2 }])
        });
        let sentence = outcomes[0].as_ref().unwrap_err().to_string();
        assert_eq!(sentence, "the ranks disagree: rank 2 has no tls, all others yes");
        assert!(
            on_all(3, |meet| agree(meet, "job", &[("a", "b".to_owned())]))
                .iter()
                .all(Result::is_ok)
        );
    }

    #[test]
    fn a_seed_that_was_not_given_is_drawn_once() {
        let drawn = on_all(4, |meet| common_seed(meet, None).unwrap());
        assert!(drawn.iter().all(|seed| *seed == drawn[0]));
        assert_ne!(drawn, on_all(4, |meet| common_seed(meet, None).unwrap()));
        assert_eq!(on_all(2, |meet| common_seed(meet, Some(9)).unwrap()), [9, 9]);
        let mixed = on_all(3, |meet| common_seed(meet, (meet.world().rank == 1).then_some(9)));
        let sentence = mixed[0].as_ref().unwrap_err().to_string();
        assert_eq!(sentence, "the ranks disagree: rank 1 has seed 9, all others none");
    }

    #[test]
    fn a_rank_0_that_was_started_again_takes_the_seed_that_the_others_use() {
        let hall = Hall::new(3, Duration::from_mins(1));
        let seed = |meet: &dyn Meet| common_seed(meet, None).unwrap();
        let first = on_ranks(&hall, 0..3, seed);
        assert_eq!(on_ranks(&hall, [0], seed), first[..1]);
        assert_eq!(on_ranks(&hall, [2], seed), first[..1], "and so does who comes after it");
    }

    #[test]
    fn a_rank_that_cannot_take_part_tells_all_at_once() {
        let outcomes = on_all(3, |meet| match meet.world().rank {
            1 => share(meet, "caches", Err("its disk is\ngone")),
            _ => share(meet, "caches", Ok(b"mine")),
        });
        for outcome in outcomes {
            let sentence = outcome.unwrap_err().to_string();
            assert_eq!(sentence, "rank 1 cannot take part: its disk is?gone");
        }
        let outcomes = on_all(2, |meet| share(meet, "empty", Ok(b"")).unwrap());
        assert_eq!(outcomes, vec![vec![vec![]; 2]; 2]);
    }

    #[test]
    fn what_a_meeting_cannot_carry_is_refused_on_all_ranks_at_once() {
        let outcomes = on_all(3, |meet| {
            let length = if meet.world().rank == 2 { LONGEST_VALUE } else { LONGEST_VALUE - 1 };
            share(meet, "caches", Ok(&vec![0; length]))
        });
        for outcome in outcomes {
            let sentence = outcome.unwrap_err().to_string();
            assert!(
                sentence.starts_with("rank 2 cannot take part: what it has to give to caches has"),
                "{sentence}"
            );
        }
    }

    proptest! {
        #[test]
        fn difference_is_found_exactly_where_there_is_one(
            values in prop::collection::vec(prop::collection::vec(0u8..3, 2), 1..9)
        ) {
            let all: Vec<Vec<(String, String)>> = values.iter().map(|of_rank| {
                of_rank.iter().enumerate().map(|(at, it)| (format!("f{at}"), it.to_string())).collect()
            }).collect();
            let said = difference(&all);
            for at in 0..2 {
                let differs = values.iter().any(|of_rank| of_rank[at] != values[0][at]);
                let named = said.as_ref().is_some_and(|said| said.contains(&format!("f{at} ")));
                prop_assert_eq!(differs, named, "{:?}", said);
            }
        }

        #[test]
        fn garbage_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            read(&bytes);
        }
    }
}
