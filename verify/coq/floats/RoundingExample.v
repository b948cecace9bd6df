(** [check_float] run inside Coq's kernel, on a 1-D convolution with 3 taps, 2 input and 2 output channels.

    The layer of Theorem 1 in float32: head h attends to q + h − 1 and carries tap h, W_out = I.  It is accepted;
    each planted fault is rejected: a bound too small, two heads swapped, weights off by an ulp of the smallest where
    the bound leaves no room for it, a bias that differs, heads that are not one-hot. *)

From Coq Require Import ZArith List.
From Attention Require Import Definitions RoundingHead RoundingLayer RoundingDyadic RoundingCheck.
Import ListNotations.
Open Scope Z_scope.

(** W_τ[c, j] = (7(τ + 1) + 3c + j − 8)/32 *)
Definition tap (τ : Z) (c j : nat) : dyadic := Dyadic (7 * (τ + 1) + 3 * Z.of_nat c + Z.of_nat j - 8) (-5).

Definition example (shift : Z -> Z) (row_bound : dyadic) (ulp bias : Z) : float_pair Z := {|
  in_channels := 2; head_dim := 2; out_channels := 2;
  all_heads := [-1; 0; 1];
  shift h := [shift h];
  row_bound _ := row_bound;
  w_val h c i := z_add (tap h c i) (Dyadic ulp (-28));
  w_out _ i j := if Nat.eqb i j then z_of 1 else z_of 0;
  b_att _ := Dyadic bias (-10);
  support_of_kernel := [[-1]; [0]; [1]];
  kernel τ c j := tap (hd 0 τ) c j;
  b_conv _ := z_of 0 |}.

(** float32, at most 1000 tokens, |X| ≤ 1. *)
Definition float32 (o : order) : setting := Setting (-149) 24 o 1000 (z_of 1).

Definition accepts (p : float_pair Z) (T : dyadic) : bool :=
  forallb (fun o => check_float (float32 o) p T) [by_heads values_first; by_heads attended_first; weights_first].

Definition sound_bound : dyadic := Dyadic 1 (-19).

Example faithful_layer : accepts (example (fun h => h) (z_of 0) 0 0) sound_bound = true.
Proof. vm_compute; reflexivity. Qed.

Example bound_too_small : accepts (example (fun h => h) (z_of 0) 0 0) (Dyadic 1 (-21)) = false.
Proof. vm_compute; reflexivity. Qed.

Example heads_swapped : accepts (example (fun h => - h) (z_of 0) 0 0) sound_bound = false.
Proof. vm_compute; reflexivity. Qed.

(** The bound that is exactly the rounding of the layer is met; an ulp of the smallest weight, 2^−28, exceeds it. *)
Definition tight (p : float_pair Z) : bool :=
  let s := float32 (by_heads values_first) in
  match all_figures s (example (fun h => h) (z_of 0) 0 0) with
  | f :: _ => match all_figures s p with g :: _ => z_le (total g) (total f) | [] => false end
  | [] => false
  end.

Example no_ulp : tight (example (fun h => h) (z_of 0) 0 0) = true.
Proof. vm_compute; reflexivity. Qed.

Example one_ulp : tight (example (fun h => h) (z_of 0) 1 0) = false.
Proof. vm_compute; reflexivity. Qed.

Example bias_differs : accepts (example (fun h => h) (z_of 0) 0 1) sound_bound = false.
Proof. vm_compute; reflexivity. Qed.

Example head_softened : accepts (example (fun h => h) (Dyadic 1 (-10)) 0 0) sound_bound = false.
Proof. vm_compute; reflexivity. Qed.
