//! Colour and dash of each policy, the same in every plot.
//!
//! Fourteen hues cannot be told apart. There are nine (Paul Tol's *muted* set, made for
//! colour-blind readers) and a grey; policies of one family share a hue and differ in dash and
//! marker. Labels stand beside the lines, so colour never carries the meaning alone.

use super::format::shorten;
use super::svg::{Point, Svg};
use crate::outcome::RunOutcome;

/// Hue by family. A label belongs to the family whose name is its longest prefix, so that
/// `nopfs (availability known)` looks like `nopfs`.
const FAMILIES: [(&str, usize); 13] = [
    ("belady", 0),
    ("nopfs", 1),
    ("lobster", 2),
    ("monarch", 3),
    ("lru", 4),
    ("staging", 5),
    ("parallel-staging", 5),
    ("deepio", 6),
    ("lbann", 7),
    ("locality-aware", 8),
    ("naive", GREY),
    ("perfect", GREY),
    ("lower bound", GREY),
];
/// Hues in the style sheet: `.h0` to `.h8`, and `.h9` the grey one.
const HUES: usize = 9;
const GREY: usize = 9;
/// Dash patterns in the style sheet: `.v0` to `.v3`.
const VARIANTS: usize = 4;

#[derive(Clone, Debug, PartialEq)]
struct PolicyInk {
    label: String,
    hue: usize,
    variant: usize,
}

#[derive(Clone, Debug)]
pub struct PolicyPalette(Vec<PolicyInk>);

impl PolicyPalette {
    pub fn new(outcomes: &[RunOutcome]) -> Self {
        let mut inks: Vec<PolicyInk> = Vec::new();
        for outcome in outcomes {
            if inks.iter().any(|ink| ink.label == outcome.policy) {
                continue;
            }
            let used = |hue: usize| inks.iter().filter(|ink| ink.hue == hue).count();
            let hue = family(&outcome.policy)
                .unwrap_or_else(|| (0..HUES).rev().min_by_key(|h| used(*h)).unwrap_or(GREY));
            let variant = used(hue) % VARIANTS;
            inks.push(PolicyInk { label: outcome.policy.clone(), hue, variant });
        }
        Self(inks)
    }

    /// Classes that set the colour and the dash of a line.
    pub fn class(&self, policy: &str) -> String {
        let ink = self.0.iter().find(|ink| ink.label == policy);
        let (hue, variant) = ink.map_or((GREY, 0), |ink| (ink.hue, ink.variant));
        format!("h{hue} v{variant}")
    }

    /// The policy's marker and name; `at` is the middle of the marker.
    pub fn label(&self, svg: &mut Svg, policy: &str, at: Point, muted: bool) {
        let class = self.class(policy);
        svg.circle(&format!("mark {class}"), at, 4.0, "");
        let text = if muted { "mute" } else { "name" };
        svg.text_with_tip(text, (at.0 + 10.0, at.1 + 4.0), &shorten(policy, 22), policy);
    }
}

fn family(label: &str) -> Option<usize> {
    let fitting = FAMILIES.iter().filter(|(name, _)| label.starts_with(name));
    fitting.max_by_key(|(name, _)| name.len()).map(|(_, hue)| *hue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn palette(labels: &[&str]) -> PolicyPalette {
        let outcome = |l: &&str| RunOutcome { policy: (*l).to_owned(), ..RunOutcome::default() };
        PolicyPalette::new(&labels.iter().map(outcome).collect::<Vec<_>>())
    }

    #[test]
    fn a_family_shares_its_hue_and_differs_in_dash() {
        let inks = palette(&["deepio-ordered", "nopfs", "deepio-opportunistic", "nopfs known"]);
        assert_eq!(inks.class("deepio-ordered"), "h6 v0");
        assert_eq!(inks.class("deepio-opportunistic"), "h6 v1");
        assert_eq!(inks.class("nopfs known"), "h1 v1");
    }

    #[test]
    fn known_policies_never_share_an_ink() {
        let labels = [
            "perfect",
            "naive",
            "staging",
            "deepio-ordered",
            "deepio-opportunistic",
            "parallel-staging",
            "lbann-dynamic",
            "lbann-preload",
            "locality-aware",
            "nopfs",
            "lobster",
            "monarch",
            "lru",
            "belady",
        ];
        let inks = palette(&labels);
        let mut classes: Vec<String> = labels.iter().map(|l| inks.class(l)).collect();
        classes.sort();
        classes.dedup();
        assert_eq!(classes.len(), labels.len());
    }

    #[test]
    fn unknown_labels_take_free_hues() {
        let inks = palette(&["a", "b"]);
        assert_ne!(inks.class("a"), inks.class("b"));
    }
}
