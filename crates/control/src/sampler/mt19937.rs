//! The Mersenne Twister as torch's CPU generator runs it.
//!
//! It is written by hand for bit parity with torch's saved states, and for speed: a shuffle needs
//! millions of words, so the state is renewed in blocks of 624 words, in loops that a compiler can
//! vectorise, and words are returned in slices. The state is kept as torch keeps it, so that a
//! generator can be skipped ahead, saved and compared word for word.

const WORDS: usize = 624;
const SHIFT: usize = 397;

/// torch's saved form: seed, words left, whether it was seeded, next word, 624 words of
/// which the lower halves count, then what normal deviates need.
const TORCH_BYTES: usize = 5056;
const TORCH_LEFT: usize = 8;
const TORCH_NEXT: usize = 16;
const TORCH_WORDS: usize = 24;

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// torch's `torch.Generator` for the CPU.
#[derive(Clone, PartialEq, Eq)]
pub struct Mt19937 {
    state: [u32; WORDS],
    /// The index of the next word in `state`; 624 when all are used.
    next: usize,
}

impl std::fmt::Debug for Mt19937 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mt19937").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Mt19937 {
    /// Does `manual_seed(seed)`. torch uses the low 32 bits only, so a negative seed is the same as
    /// its two's complement.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; WORDS];
        let mut word = seed as u32;
        state[0] = word;
        for (i, slot) in state.iter_mut().enumerate().skip(1) {
            word = 1_812_433_253_u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(i as u32);
            *slot = word;
        }
        Self { state, next: WORDS }
    }

    /// Continues from saved words; `None` if `next` is above 624.
    pub fn from_words(words: [u32; WORDS], next: usize) -> Option<Self> {
        (next <= WORDS).then_some(Self { state: words, next })
    }

    /// Returns the raw state and the index of the next word.
    pub fn words(&self) -> (&[u32; WORDS], usize) {
        (&self.state, self.next)
    }

    /// Returns the state in 2,500 bytes: the index of the next word, then all words, each as four
    /// little-endian bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let index = self.next as u32;
        std::iter::once(&index).chain(&self.state).flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads what [`Self::to_bytes`] gave; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<4>();
        let (&index, words) = words.split_first().filter(|_| rest.is_empty())?;
        let words: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
        Self::from_words(words.try_into().ok()?, u32::from_le_bytes(index) as usize)
    }

    /// Reads what `torch.Generator.get_state()` gave; `None` for anything else.
    pub fn from_torch(state: &[u8]) -> Option<Self> {
        let (left, next) = (field::<4>(state, TORCH_LEFT)?, field::<8>(state, TORCH_NEXT)?);
        // After seeding, torch has one word left and the first is next: no word is ready. After
        // its last word it has one left and 624 is next.
        let (left, next) = (u32::from_le_bytes(left), u64::from_le_bytes(next));
        let next = if left == 1 { WORDS } else { usize::try_from(next).ok()? };
        if state.len() != TORCH_BYTES || left as usize + next != WORDS + 1 {
            return None;
        }
        let word = |at: usize| {
            field::<8>(state, TORCH_WORDS + 8 * at).map(|word| u64::from_le_bytes(word) as u32)
        };
        let words: Option<Vec<u32>> = (0..WORDS).map(word).collect();
        Self::from_words(words?.try_into().ok()?, next)
    }

    /// Writes this state into the bytes of a `get_state()`, for `set_state()`; returns false if
    /// they have another length. The other fields (the seed, a normal deviate kept for the next
    /// call) stay as they are.
    pub fn write_torch(&self, state: &mut [u8]) -> bool {
        if state.len() != TORCH_BYTES {
            return false;
        }
        let left = (WORDS + 1 - self.next) as u32;
        state[TORCH_LEFT..TORCH_LEFT + 4].copy_from_slice(&left.to_le_bytes());
        state[TORCH_NEXT..TORCH_NEXT + 8].copy_from_slice(&(self.next as u64).to_le_bytes());
        let (words, _) = state[TORCH_WORDS..].as_chunks_mut::<8>();
        for (slot, &word) in words.iter_mut().zip(&self.state) {
            *slot = u64::from(word).to_le_bytes();
        }
        true
    }

    /// Returns the next 32-bit word.
    pub fn random(&mut self) -> u32 {
        if self.next == WORDS {
            self.renew();
        }
        let word = self.state[self.next];
        self.next += 1;
        temper(word)
    }

    /// Returns the next two words; the first one is the high half.
    pub fn random64(&mut self) -> u64 {
        let high = self.random();
        u64::from(high) << 32 | u64::from(self.random())
    }

    /// Writes the next `out.len()` words.
    pub fn fill(&mut self, mut out: &mut [u32]) {
        while !out.is_empty() {
            if self.next == WORDS {
                self.renew();
            }
            let ready = &self.state[self.next..];
            let count = ready.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            for (slot, &word) in now.iter_mut().zip(ready) {
                *slot = temper(word);
            }
            self.next += count;
            out = later;
        }
    }

    /// Skips `count` words. It costs only the renewal of the state, a small part of drawing them.
    pub fn skip(&mut self, mut count: u64) {
        loop {
            let ready = (WORDS - self.next) as u64;
            if count <= ready {
                self.next += count as usize;
                return;
            }
            count -= ready;
            self.renew();
        }
    }

    fn renew(&mut self) {
        const FRESH: usize = WORDS - SHIFT;
        let old = self.state;
        // Each third reads only the old state and thirds already written.
        let (first, rest) = self.state.split_at_mut(FRESH);
        let (second, third) = rest.split_at_mut(FRESH);
        twist(first, &old[..], &old[SHIFT..]);
        twist(second, &old[FRESH..], first);
        let last = third.len() - 1;
        twist(&mut third[..last], &old[2 * FRESH..], second);
        third[last] = second[last] ^ mix(old[WORDS - 1], first[0]);
        self.next = 0;
    }
}

/// `new[i] = far[i] ^ mix(old[i], old[i + 1])`.
fn twist(new: &mut [u32], old: &[u32], far: &[u32]) {
    for (((slot, &here), &following), &far) in new.iter_mut().zip(old).zip(&old[1..]).zip(far) {
        *slot = far ^ mix(here, following);
    }
}

#[inline]
fn mix(high: u32, low: u32) -> u32 {
    let joined = (high & 0x8000_0000) | (low & 0x7fff_ffff);
    // All ones where the lowest bit is set: no branch on a random bit.
    (joined >> 1) ^ ((low & 1).wrapping_neg() & 0x9908_b0df)
}

#[inline]
fn temper(mut y: u32) -> u32 {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c_5680;
    y ^= (y << 15) & 0xefc6_0000;
    y ^ (y >> 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_words_of_the_reference_implementation() {
        let mut generator = Mt19937::new(5489);
        assert_eq!(generator.random(), 3_499_211_612);
        generator.skip(9_998);
        // The 10,000th word, as the C++ standard demands of std::mt19937.
        assert_eq!(generator.random(), 4_123_659_995);
    }

    #[test]
    fn a_saved_generator_goes_on_where_it_was() {
        let mut generator = Mt19937::new(11);
        for skip in [0, 1, 622, 1, 300] {
            generator.skip(skip);
            let saved = generator.to_bytes();
            assert_eq!(saved.len(), 2500);
            assert_eq!(Mt19937::from_bytes(&saved).as_ref(), Some(&generator));
            assert_eq!(Mt19937::from_bytes(&saved[1..]), None);
            let mut torch = vec![0; TORCH_BYTES];
            assert!(generator.write_torch(&mut torch));
            assert_eq!(Mt19937::from_torch(&torch).as_ref(), Some(&generator));
            assert_eq!(Mt19937::from_torch(&torch[1..]), None);
        }
        let mut wrong = generator.to_bytes();
        wrong[1] = 9;
        assert_eq!(Mt19937::from_bytes(&wrong), None, "there is no word 2,304");
        assert_eq!(Mt19937::from_torch(&vec![0; TORCH_BYTES]), None);
    }

    #[test]
    fn only_the_low_half_of_the_seed_counts() {
        assert_eq!(Mt19937::new(7), Mt19937::new(7 + (1 << 32)));
        assert_eq!(Mt19937::new(-1_i64 as u64), Mt19937::new(0xffff_ffff));
    }

    #[test]
    fn slices_skips_and_single_words_are_one_sequence() {
        let mut single = Mt19937::new(1);
        let all: Vec<u32> = (0..5000).map(|_| single.random()).collect();
        for cut in [0, 1, 227, 623, 624, 625, 1247, 1248, 3000] {
            let mut generator = Mt19937::new(1);
            let mut head = vec![0; cut];
            generator.fill(&mut head);
            assert_eq!(head, all[..cut]);
            let mut skipped = Mt19937::new(1);
            skipped.skip(cut as u64);
            assert_eq!(skipped.random(), all[cut]);
            assert_eq!(generator.random64(), u64::from(all[cut]) << 32 | u64::from(all[cut + 1]));
        }
    }
}
