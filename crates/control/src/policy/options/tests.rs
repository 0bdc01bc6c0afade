use proptest::prelude::*;

use super::*;
use crate::model::Seconds;
use crate::policy::Availability;

fn parsed(text: &str) -> Result<PolicyKind, String> {
    text.parse().map_err(|error: PolicyError| error.to_string())
}

#[test]
fn a_name_alone_has_the_default_options() {
    for kind in PolicyKind::every() {
        assert_eq!(parsed(kind.name()), Ok(kind));
        assert_eq!(kind.to_string(), kind.name());
    }
}

#[test]
fn options_are_set_by_name() {
    let lobster = PolicyKind::by_name("lobster").unwrap();
    let mut still = lobster;
    still.set("threads", &OptionValue::Flag(false)).unwrap();
    assert_ne!(still, lobster);
    assert_eq!(parsed("lobster,threads=false"), Ok(still));
    assert_eq!(still.to_string(), "lobster,threads=false");
    assert_eq!(parsed(" lobster , threads = false"), Ok(still), "blanks mean nothing");
    let tau = |text: &str| match parsed(text).unwrap() {
        PolicyKind::Lobster { tau, .. } => tau,
        other => panic!("{other}"),
    };
    assert_eq!(tau("lobster,tau=5ms"), Seconds(0.005));
    assert_eq!(tau("lobster,tau=0.005"), Seconds(0.005), "a number is seconds");
    assert_eq!(tau("lobster,tau=2"), Seconds(2.0));
    let fixed = FixedDuties { loading: 3, preprocessing: None };
    assert_eq!(parsed("staging,loading_threads=3").unwrap().duties(), Some(fixed));
    let both = Some(FixedDuties { preprocessing: Some(2), ..fixed });
    for text in
        ["loading_threads=3,preprocessing_threads=2", "preprocessing_threads=2,loading_threads=3"]
    {
        assert_eq!(parsed(&format!("nopfs,{text}")).unwrap().duties(), both, "in any order");
    }
    let known = parsed("nopfs,availability=known").unwrap();
    assert!(matches!(known, PolicyKind::Nopfs { availability: Availability::Known, .. }));
}

#[test]
fn what_is_wrong_is_quoted_and_what_is_known_is_listed() {
    for (text, parts) in [
        ("beladi", vec!["`beladi`", "did you mean `belady`", "nopfs", "cache"]),
        ("", vec!["no policy ``"]),
        ("lobster,taw=5ms", vec!["`taw`", "`lobster`", "threads, eviction, tau"]),
        ("belady,tau=5ms", vec!["`tau`", "`belady`", "has no options"]),
        ("lobster,tau=soon", vec!["`tau` of `lobster` is `soon`", "5ms"]),
        ("lobster,tau=-1", vec!["is `-1`", "duration"]),
        ("lobster,tau=5", vec![]),
        ("lobster,tau=nan", vec!["is `NaN`"]),
        ("lobster,threads=2", vec!["`threads` of `lobster` is `2`", "true or false"]),
        ("staging,loading_threads=0", vec!["is `0`", "at least 1"]),
        ("staging,loading_threads=two", vec!["is `two`", "whole number"]),
        ("nopfs,preprocessing_threads=2", vec!["needs `loading_threads` beside it"]),
        ("nopfs,availability=maybe", vec!["is `maybe`", "`heuristic` or `known`"]),
        ("lobster,tau", vec!["`tau` is not an option", "tau=5ms"]),
        ("lobster,", vec!["`` is not an option"]),
        ("lobster,tau=1s,tau=2s", vec!["`tau` is set twice"]),
    ] {
        match parsed(text) {
            Ok(kind) => assert!(parts.is_empty(), "{text} is {kind}"),
            Err(said) => {
                assert!(!parts.is_empty(), "{said}");
                assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
            }
        }
    }
}

#[test]
fn only_listed_policies_are_parsed_from_a_list() {
    let said = PolicyKind::parse("perfect", &["belady", "lru"]).unwrap_err().to_string();
    assert!(said.contains("`perfect`") && said.ends_with("one of belady, lru"), "{said}");
    assert_eq!(PolicyKind::parse("lru", &["belady", "lru"]), Ok(PolicyKind::Lru));
}

fn value() -> impl Strategy<Value = OptionValue> {
    prop_oneof![
        any::<bool>().prop_map(OptionValue::Flag),
        any::<i64>().prop_map(OptionValue::Whole),
        (1..100i64).prop_map(OptionValue::Whole),
        any::<f64>().prop_map(OptionValue::Fraction),
        Just(OptionValue::Text("known".to_owned())),
        "[0-9]{1,3} ?(ms|us|s|h)".prop_map(OptionValue::Text),
    ]
}

proptest! {
    /// Nodes compare the text, and node engines get it instead of the policy.
    #[test]
    fn a_policy_is_parsed_from_its_own_text(
        at in 0..16usize,
        values in prop::collection::vec(value(), 8),
    ) {
        let mut kind = PolicyKind::every().nth(at).unwrap();
        for (name, value) in kind.option_names().into_iter().zip(&values) {
            let before = kind;
            if kind.set(name, value).is_err() {
                prop_assert_eq!(kind, before, "a refused value changes nothing");
            }
        }
        prop_assert_eq!(kind.to_string().parse(), kind.complete());
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC{0,30}", options in "[a-z_=,0-9.]{0,30}") {
        let _ = text.parse::<PolicyKind>();
        let _ = format!("lobster,{options}").parse::<PolicyKind>();
    }
}
