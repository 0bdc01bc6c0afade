//! Where in an order a file stands.

use super::names::Name;

/// The places of each name, one after the other, and where those of a name begin.
#[derive(Debug)]
pub struct Index {
    starts: Vec<u32>,
    places: Vec<u32>,
}

impl Index {
    pub fn of(order: &[Name]) -> Self {
        let names = order.iter().map(|name| name.0 as usize + 1).max().unwrap_or(0);
        let mut starts = vec![0; names + 1];
        for name in order {
            starts[name.0 as usize + 1] += 1;
        }
        for name in 0..names {
            starts[name + 1] += starts[name];
        }
        let mut next = starts.clone();
        let mut places = vec![0; order.len()];
        for (place, name) in (0..).zip(order) {
            let slot = &mut next[name.0 as usize];
            places[*slot as usize] = place;
            *slot += 1;
        }
        Self { starts, places }
    }

    /// Rising; none for a name that is not in the order.
    pub fn places(&self, name: Name) -> &[u32] {
        let at = name.0 as usize;
        match self.starts.get(at..at + 2) {
            Some(&[start, end]) => &self.places[start as usize..end as usize],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_a_search_finds(order in prop::collection::vec(0u32..20, 0..60)) {
            let order: Vec<Name> = order.into_iter().map(Name).collect();
            let index = Index::of(&order);
            for name in (0..25).map(Name) {
                let naive: Vec<u32> =
                    (0..).zip(&order).filter(|&(_, &there)| there == name).map(|(at, _)| at).collect();
                prop_assert_eq!(index.places(name), &naive[..]);
            }
        }
    }
}
